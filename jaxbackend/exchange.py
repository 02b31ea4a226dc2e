"""What devices exchange within a step: gradients, and the moments of a synchronised batch norm."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jaxbackend import overlap

_Own = Callable[[jax.Array], tuple[jax.Array, jax.Array]]
_BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's default
_OF_A_KERNEL = 4  # the axes of a convolution's
_FLOATS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}  # in XLA's programs


def mean(tree: Any, axis: str) -> Any:
    """Return the mean of every array over the devices of a mapped step, many arrays reduced as one.

    XLA joins small reductions, too, but when it has fused already: putting arrays into one, and taking them out again,
    are kernels of their own then, two for each array. What is put together here on one device, it takes out.
    """
    arrays, structure = jax.tree.flatten(tree)
    found = list[jax.Array]()
    for bucket in _buckets(arrays, _BUCKET_BYTES):
        found += _apart(jax.lax.pmean(_joint(bucket), axis), [array.shape for array in bucket])
    return jax.tree.unflatten(structure, found)


def sum_of_parts(tree: Any, mesh: AbstractMesh) -> Any:
    """Return the sum of the parts of every array [devices, ...], of which each device of a mesh has one, likewise."""
    arrays, structure = jax.tree.flatten(tree)
    if mesh.size == 1:  # of a sum over the parts, XLA does not
        return jax.tree.unflatten(structure, [array[0] for array in arrays])
    everywhere = NamedSharding(mesh, PartitionSpec())
    found = list[jax.Array]()
    for bucket in _buckets(arrays, mesh.size * _BUCKET_BYTES):
        joint = jax.lax.with_sharding_constraint(jax.vmap(_joint)(bucket).sum(0), everywhere)
        found += _apart(joint, [array.shape[1:] for array in bucket])
    return jax.tree.unflatten(structure, found)


def _buckets(arrays: Sequence[jax.Array], size: int) -> Iterator[list[jax.Array]]:
    """Yield the arrays in order, so many at a time as make a bucket of that many bytes, all of one dtype."""
    bucket = list[jax.Array]()
    for array in arrays:
        if bucket and (array.dtype != bucket[0].dtype or sum(each.nbytes for each in bucket) >= size):
            yield bucket
            bucket = []
        bucket.append(array)
    yield bucket


def _joint(arrays: Sequence[jax.Array]) -> jax.Array:
    # A convolution's kernel [height, width, inputs, outputs] lies in memory with its outputs first, as cuDNN has it.
    turned = (jnp.moveaxis(array, -1, 0) if array.ndim == _OF_A_KERNEL else array for array in arrays)
    return jnp.concatenate([array.ravel() for array in turned])


def _apart(joint: jax.Array, shapes: Sequence[tuple[int, ...]]) -> Iterator[jax.Array]:
    """Yield the arrays that are joint, of these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    for shape, part in zip(shapes, jnp.split(joint, ends[:-1]), strict=True):
        if len(shape) == _OF_A_KERNEL:
            yield jnp.moveaxis(part.reshape(shape[-1], *shape[:-1]), 0, -1)
        else:
            yield part.reshape(shape)


def reduction_dtype(program: Any) -> str | None:
    """Return the narrowest dtype that a compiled program (`jax.stages.Compiled`) adds up over devices, None for none.

    What XLA adds up where it splits a program need not have a parameter's dtype.
    """
    reduced = re.findall(r" = (.*) (?:all-reduce|reduce-scatter)(?:-start)?\(", program.as_text())
    found = {dtype for each in reduced for dtype in re.findall(r"\b(bf16|f16|f32|f64)\[", each)}
    return next((name for dtype, name in _FLOATS.items() if dtype in found), None)


def moments(wide: jax.Array, own: _Own, over: str | None) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance of the whole batch from each device's `own`, of equally many values.

    `over` is the axis of the devices, each of which has its part, `wide` [N, ..., C]; None: there is no other. One
    exchange for both (Chan, Golub and LeVeque 1983, Algorithms for Computing the Sample Variance).
    """
    if over is None or jax.lax.axis_size(over) == 1:  # XLA would still put both together
        return own(wide)
    return cast("tuple[jax.Array, jax.Array]", _moments(overlap.held(wide), own, over))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _moments(wide: jax.Array, own: _Own, over: str) -> tuple[jax.Array, jax.Array]:
    """One exchange of two vectors forward and one backward, whose gradient is written out.

    All that a device needs of the others are the sums of the moments' gradients. Automatic differentiation has each
    send the others what each needs, for which a compiled program has a kernel more a layer.
    """
    means, variances = jnp.moveaxis(jax.lax.all_gather(jnp.stack(own(wide)), over), 1, 0)
    mean = means.mean(0)
    return mean, (variances + jnp.square(means - mean)).mean(0)


def _moments_forward(wide: jax.Array, own: _Own, over: str) -> tuple[Any, tuple[jax.Array, jax.Array]]:
    """Return mean [C] and biased variance [C] of all devices' values [N, ..., C], and what their gradient needs."""
    found: Any = _moments(wide, own, over)
    return found, (wide, found[0])


def _moments_backward(
    _: _Own, over: str, saved: tuple[jax.Array, jax.Array], gradients: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array]:
    """Return the gradient of this device's values, from those of mean and variance on every device."""
    (wide, mean), (of_mean, of_variance), devices = saved, gradients, jax.lax.axis_size(over)
    count = wide.size // wide.shape[-1] * devices
    sums = jnp.stack((of_mean / count, 2 * of_variance / count))
    # A sum over devices takes longer than a scattered one, of a copy for each.
    offset, slope = jax.lax.psum_scatter(jnp.stack([sums] * devices), over)
    return (offset + slope * (wide - mean),)


_moments.defvjp(_moments_forward, _moments_backward)
