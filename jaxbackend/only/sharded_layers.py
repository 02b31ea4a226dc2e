"""Layers that are computed of each device's part, in a program of a whole batch that XLA splits for all else.

XLA by itself reduces a gradient where it splits it, before it is converted to its parameter's dtype: in bfloat16,
bfloat16 (github.com/jax-ml/jax/issues/27496); and each by itself. Here every device has a copy of a layer's parameters,
so that the copies' gradients are what is added up.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jaxbackend import activations, layout, overlap


def copies(parameters: Any, mesh: AbstractMesh) -> Any:
    """Return parameters with one copy for each device of a mesh, [devices, ...], which lies there."""
    over = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))

    def copied(array: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(jnp.broadcast_to(array, (mesh.size, *array.shape)), over)

    return jax.tree.map(copied, parameters)


@contextmanager
def applied(model: nnx.Module, mesh: AbstractMesh | None) -> Generator[None]:
    """Have each layer of a model whose parameters are such copies computed so while the context lasts (None: none)."""
    if mesh is None:
        yield
        return
    layers = {layout.name(path): module for path, module in nnx.iter_modules(model) if _has_parameters(module)}
    with activations.intercepted(layers, _ByPart(mesh)):
        yield


def _has_parameters(module: Any) -> bool:
    return any(isinstance(each, nnx.Param) for each in vars(module).values())


class _ByPart:
    """Stands for the calls of layers (`jaxbackend.activations.Around`)."""

    def __init__(self, mesh: AbstractMesh) -> None:
        self._mesh, self._part = mesh, PartitionSpec(*mesh.axis_names)

    def __call__(
        self, path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del path, call, options
        (images,) = inputs  # a layer takes no more
        graph, parameters, statistics = nnx.split(module, nnx.Param, nnx.BatchStat)

        def computed(parameters: Any, statistics: Any, images: jax.Array, tickets: overlap.Waiting) -> Any:
            layer: Any = nnx.merge(graph, jax.tree.map(lambda array: array[0], parameters), statistics, copy=True)
            overlap.put(tickets)
            return layer(images), nnx.state(layer, nnx.BatchStat), overlap.removed()

        result, statistics, tickets = jax.shard_map(
            computed,
            mesh=self._mesh,
            in_specs=(self._part, PartitionSpec(), self._part, self._part),
            # statistics are those of the whole batch on every device
            out_specs=(self._part, PartitionSpec(), self._part),
            check_vma=False,
        )(parameters, statistics, images, overlap.removed())
        nnx.update(module, statistics)
        overlap.put(tickets)
        return result
