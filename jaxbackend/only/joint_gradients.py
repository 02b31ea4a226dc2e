"""Gradients of several devices, added up in buckets of many arrays."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

_BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's default
_KERNEL_AXES = 4  # the axes of a convolution's kernel


def average(tree: Any, axis: str) -> Any:
    """Return the mean of every array over the devices of a mapped step, reduced in buckets of many arrays.

    XLA joins small reductions, too, but only after it has fused. Joining and splitting then take two kernels of their
    own for each array. On one device, XLA removes this joining.
    """
    arrays, structure = jax.tree.flatten(tree)
    results = list[jax.Array]()
    for bucket in _buckets(arrays, _BUCKET_BYTES):
        results += _split(jax.lax.pmean(_join(bucket), axis), [array.shape for array in bucket])
    return jax.tree.unflatten(structure, results)


def add_parts(tree: Any, mesh: AbstractMesh) -> Any:
    """Return the sum of every array [devices, ...] over its parts, in buckets. Each device of a mesh has a part."""
    arrays, structure = jax.tree.flatten(tree)
    if mesh.size == 1:  # XLA would not remove the sum
        return jax.tree.unflatten(structure, [array[0] for array in arrays])
    everywhere = NamedSharding(mesh, PartitionSpec())
    results = list[jax.Array]()
    for bucket in _buckets(arrays, mesh.size * _BUCKET_BYTES):
        joint = jax.lax.with_sharding_constraint(jax.vmap(_join)(bucket).sum(0), everywhere)
        results += _split(joint, [array.shape[1:] for array in bucket])
    return jax.tree.unflatten(structure, results)


def _buckets(arrays: Sequence[jax.Array], size: int) -> Iterator[list[jax.Array]]:
    """Yield the arrays in order, in buckets of one dtype and at least that many bytes."""
    bucket = list[jax.Array]()
    for array in arrays:
        if bucket and (array.dtype != bucket[0].dtype or sum(array.nbytes for array in bucket) >= size):
            yield bucket
            bucket = []
        bucket.append(array)
    yield bucket


def _join(arrays: Sequence[jax.Array]) -> jax.Array:
    # In memory, a convolution's kernel [height, width, inputs, outputs] has its outputs first, as in cuDNN.
    turned = (jnp.moveaxis(array, -1, 0) if array.ndim == _KERNEL_AXES else array for array in arrays)
    return jnp.concatenate([array.ravel() for array in turned])


def _split(joint: jax.Array, shapes: Sequence[tuple[int, ...]]) -> Iterator[jax.Array]:
    """Yield the joined arrays, which have these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    for shape, part in zip(shapes, jnp.split(joint, ends[:-1]), strict=True):
        if len(shape) == _KERNEL_AXES:
            yield jnp.moveaxis(part.reshape(shape[-1], *shape[:-1]), 0, -1)
        else:
            yield part.reshape(shape)
