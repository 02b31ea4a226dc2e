"""A model as pure functions of its parameters and buffers: what the training step and the session know of it."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import jax
from flax import nnx
from jax.sharding import AbstractMesh

from compare.base.interface import Refused
from jaxbackend import activations, layout, rematerialisation, roles
from jaxbackend.only import sharded_layers

Outputs = dict[str, jax.Array]


class Functional(Protocol):
    """A model without state of its own.

    Attributes:
        parameters, buffers: its variables at first, arrays in nested dicts; their `shapes` alone once a session has
            taken them. Every call of a compiled step takes them apart, for which JAX needs a hundred times as long
            where they are flax's states.
        signature: the shape of every parameter and buffer by neutral name, in neutral layout, in execution order.
        leaves: how each crosses; None: as a twin's.
        layers: the role of each layer by its name (`jaxbackend.roles`).
    """

    parameters: Any
    buffers: Any
    signature: dict[str, tuple[int, ...]]
    leaves: layout.Leaves | None
    layers: Mapping[str, str]

    def train(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Any, Outputs]:
        """Return logits for images [N, H, W, C] in training, the new buffers, and layers' outputs by name."""
        ...

    def evaluate(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Outputs]:
        """Return logits in evaluation, and layers' outputs by name."""
        ...

    def run_layer(self, layer: str, parameters: Any, buffers: Any, inputs: jax.Array, training: bool) -> jax.Array:
        """Return the output of one layer, nothing else run.

        Raises:
            Refused: there is no such layer, or it needs more than one array.
        """
        ...


def shapes(tree: Any) -> Any:
    """Return a tree of arrays with the shape and dtype of each alone: the arrays would take a device's memory."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), tree)


class Twin:
    """A twin: a flax.nnx model of `jaxbackend.models`, as a `Functional`; in training, `blocks` are recomputed.

    Where devices of a `mesh` each compute their part of its layers in training, the parameters are copies for them
    (`jaxbackend.only.sharded_layers`).
    """

    leaves: layout.Leaves | None = None
    layers: Mapping[str, str]

    def __init__(self, model: nnx.Module, blocks: Sequence[str] = (), mesh: AbstractMesh | None = None) -> None:
        self._blocks, self._mesh = blocks, mesh
        self.signature = layout.signature(model)
        self.layers = {layout.name(path): roles.role(module) for path, module in nnx.iter_modules(model)}
        model.eval()
        self._eval_graph, _, _ = nnx.split(model, nnx.Param, nnx.BatchStat)
        model.train()
        self._graph, *states = nnx.split(model, nnx.Param, nnx.BatchStat)
        self.parameters, self.buffers = map(nnx.to_pure_dict, states)

    def train(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Any, Outputs]:
        """See `Functional`."""
        model = self._merged(parameters, buffers, training=True)
        with self._watched(model) as outputs, rematerialisation.applied(model, self._blocks, outputs, self._watched):
            logits = model(images)
        return logits, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)), outputs

    def evaluate(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Outputs]:
        """See `Functional`."""
        model = self._merged(parameters, buffers, training=False)
        with activations.recorded(model) as outputs:
            logits = model(images)
        return logits, outputs

    def run_layer(self, layer: str, parameters: Any, buffers: Any, inputs: jax.Array, training: bool) -> jax.Array:
        """See `Functional`."""
        model = self._merged(parameters, buffers, training)
        layers = {layout.name(path): module for path, module in nnx.iter_modules(model)}
        if not layer or layer not in layers:
            raise Refused(f"there is no layer {layer!r}; allowed: {', '.join(filter(None, layers))}")
        return layers[layer](inputs)

    @contextmanager
    def _watched(self, model: nnx.Module) -> Generator[Outputs]:
        with sharded_layers.applied(model, self._mesh), activations.recorded(model) as outputs:
            yield outputs

    def _merged(self, parameters: Any, buffers: Any, training: bool) -> Any:
        return nnx.merge(self._graph if training else self._eval_graph, parameters, buffers)
