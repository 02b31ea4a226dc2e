"""Layers that each device computes for its part of the batch, in a program that XLA splits everywhere else.

By itself, XLA reduces each gradient alone, before it converts the gradient to the parameter's dtype, so a bfloat16
gradient in bfloat16 (github.com/jax-ml/jax/issues/27496). Here every device has its own copy of a layer's parameters,
and the gradients of these copies are added up.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from compare.base.names import join_path
from jaxbackend import activations, overlap


def copy_to_devices(parameters: Any, mesh: AbstractMesh) -> Any:
    """Return parameters [devices, ...], with one copy on each device of a mesh."""
    over = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))

    def copy(array: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(jnp.broadcast_to(array, (mesh.size, *array.shape)), over)

    return jax.tree.map(copy, parameters)


@contextmanager
def shard(model: nnx.Module, mesh: AbstractMesh | None) -> Generator[None]:
    """Let each device compute its part of a model's layers while the context lasts. Without a mesh, do nothing.

    The model's parameters are copies from `copy_to_devices`.
    """
    if mesh is None:
        yield
        return
    layers = {join_path(path): module for path, module in nnx.iter_modules(model) if _has_parameters(module)}
    with activations.intercept(layers, _ByPart(mesh)):
        yield


def _has_parameters(module: Any) -> bool:
    return any(isinstance(value, nnx.Param) for value in vars(module).values())


class _ByPart:
    """Replaces the calls of layers (`jaxbackend.activations.Around`)."""

    def __init__(self, mesh: AbstractMesh) -> None:
        self._mesh, self._part = mesh, PartitionSpec(*mesh.axis_names)

    def __call__(
        self, path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del path, call, options
        (images,) = inputs  # a layer has one input
        graph, parameters, statistics = nnx.split(module, nnx.Param, nnx.BatchStat)

        def compute(parameters: Any, statistics: Any, images: jax.Array, tickets: overlap.Waiting) -> Any:
            layer: Any = nnx.merge(graph, jax.tree.map(lambda array: array[0], parameters), statistics, copy=True)
            overlap.set_waiting(tickets)
            return layer(images), nnx.state(layer, nnx.BatchStat), overlap.remove_waiting()

        result, statistics, tickets = jax.shard_map(
            compute,
            mesh=self._mesh,
            in_specs=(self._part, PartitionSpec(), self._part, self._part),
            # Every device has the statistics of the whole batch.
            out_specs=(self._part, PartitionSpec(), self._part),
            check_vma=False,
        )(parameters, statistics, images, overlap.remove_waiting())
        nnx.update(module, statistics)
        overlap.set_waiting(tickets)
        return result
