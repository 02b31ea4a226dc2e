"""What devices exchange within a step: gradients, and the moments of a synchronised batch norm."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

_BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's default
_OF_A_KERNEL = 4  # the axes of a convolution's
_FLOATS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}  # in XLA's programs


def mean(tree: Any, axis: str | None) -> Any:
    """Return the mean of every array over the devices of a mapped step, many arrays reduced as one.

    XLA joins small reductions, too, but when it has fused already: putting arrays into one, and taking them out again,
    are kernels of their own then, two for each array.
    """
    if axis is None:
        return tree
    arrays, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [each for bucket in _buckets(arrays) for each in _joint_mean(bucket, axis)])


def _buckets(arrays: Sequence[jax.Array]) -> Iterator[list[jax.Array]]:
    """Yield the arrays in order, so many at a time as make a bucket, all of one dtype."""
    bucket = list[jax.Array]()
    for array in arrays:
        if bucket and (array.dtype != bucket[0].dtype or sum(each.nbytes for each in bucket) >= _BUCKET_BYTES):
            yield bucket
            bucket = []
        bucket.append(array)
    yield bucket


def _joint_mean(arrays: Sequence[jax.Array], axis: str) -> Iterator[jax.Array]:
    # A convolution's kernel [height, width, inputs, outputs] lies in memory with its outputs first, as cuDNN has it.
    turned = [jnp.moveaxis(array, -1, 0) if array.ndim == _OF_A_KERNEL else array for array in arrays]
    joint = jax.lax.pmean(jnp.concatenate([array.ravel() for array in turned]), axis)
    ends = np.cumsum([array.size for array in turned])
    for array, part in zip(turned, jnp.split(joint, ends[:-1]), strict=True):
        found = part.reshape(array.shape)
        yield jnp.moveaxis(found, 0, -1) if found.ndim == _OF_A_KERNEL else found


def by_part(layer: Callable[[jax.Array], jax.Array], inputs: jax.Array, over: str | AbstractMesh | None) -> jax.Array:
    """Return what a layer makes of inputs [N, ...], of each device's part apart where XLA splits them `over` a mesh.

    What devices then add up of a parameter's gradient has the parameter's dtype. XLA by itself would add up what it is
    before it is converted to that: in bfloat16, bfloat16 (github.com/jax-ml/jax/issues/27496).
    """
    if not isinstance(over, AbstractMesh) or len(inputs) % over.size:  # no training step: its batch has equal parts
        return layer(inputs)
    parts = PartitionSpec(*over.axis_names)
    return jax.shard_map(layer, mesh=over, in_specs=parts, out_specs=parts, check_vma=False)(inputs)


def reduction_dtype(program: Any) -> str | None:
    """Return the narrowest dtype that a compiled program (`jax.stages.Compiled`) adds up over devices, None for none.

    Where a batch is sharded, XLA reduces a gradient where it splits it, which need not be in its parameter's dtype.
    """
    reduced = re.findall(r" = (.*) all-reduce(?:-start)?\(", program.as_text())
    found = {dtype for each in reduced for dtype in re.findall(r"\b(bf16|f16|f32|f64)\[", each)}
    return next((name for dtype, name in _FLOATS.items() if dtype in found), None)


def moments(
    wide: jax.Array, own: Callable[[jax.Array], tuple[jax.Array, jax.Array]], over: str | AbstractMesh | None
) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance of the whole batch from each device's `own`, of equally many values.

    `over` is the axis of a mapped step, whose `wide` is a device's own part [N, ..., C], or the mesh over which XLA
    splits the whole; None: one device's are the whole's. One exchange for both (Chan, Golub and LeVeque 1983,
    Algorithms for Computing the Sample Variance).
    """
    if over is None:
        return own(wide)
    if isinstance(over, str):
        each = jax.lax.all_gather(jnp.stack(own(wide)), over)
    else:
        parts = wide.reshape(over.size, -1, *wide.shape[1:])
        # Each device is to have all of them. Else XLA would exchange means first, and variances when it has the mean.
        each = jax.lax.with_sharding_constraint(
            jnp.stack(jax.vmap(own)(parts), axis=1), NamedSharding(over, PartitionSpec())
        )
    means, variances = jnp.moveaxis(each, 1, 0)
    whole = means.mean(0)
    return whole, (variances + jnp.square(means - whole)).mean(0)
