"""A model as pure functions of its parameters and buffers, for the training step and the session."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import jax
from flax import nnx
from jax.sharding import AbstractMesh

from compare.base.interface import Refused
from compare.base.names import join_path
from compare.base.profiles import layer_kind
from jaxbackend import activations, layout, rematerialisation, roles
from jaxbackend.only import sharded_layers

Outputs = dict[str, jax.Array]


class Functional(Protocol):
    """A model without state of its own.

    Attributes:
        parameters, buffers: its initial variables, arrays in nested dicts. A session replaces them by their `shapes`.
            They are not flax's states: JAX needs a hundred times as long to flatten those in every step.
        signature: the shape of every parameter and buffer by neutral name, in neutral layout.
        leaves: how each variable crosses, None for a twin.
        layers: the kind of each layer by its name (`compare.base.profiles.layer_kind`).
    """

    parameters: Any
    buffers: Any
    signature: dict[str, tuple[int, ...]]
    leaves: layout.Leaves | None
    layers: Mapping[str, str]

    def train(
        self, parameters: Any, buffers: Any, images: jax.Array, recorded: bool = True
    ) -> tuple[jax.Array, Any, Outputs]:
        """Return logits for images [N, H, W, C] in training, the new buffers, and layers' outputs by name.

        Unless `recorded`, the outputs are not needed and may be missing.
        """
        ...

    def evaluate(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Outputs]:
        """Return logits in evaluation, and layers' outputs by name."""
        ...

    def run_layer(self, layer: str, parameters: Any, buffers: Any, inputs: jax.Array, training: bool) -> jax.Array:
        """Return the output of one layer, and run no other.

        Raises:
            Refused: there is no such layer, or it takes more than one array.
        """
        ...


def shapes(tree: Any) -> Any:
    """Return only shape and dtype of each array in a tree. The arrays would take a device's memory."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), tree)


class Twin:
    """A twin, a flax.nnx model of `jaxbackend.models`, as a `Functional`.

    In training, `blocks` are computed again for their gradients. With a `mesh`, each device computes its part of the
    layers with its own copy of the parameters (`jaxbackend.only.sharded_layers`).
    """

    leaves: layout.Leaves | None = None
    layers: Mapping[str, str]

    def __init__(self, model: nnx.Module, blocks: Sequence[str] = (), mesh: AbstractMesh | None = None) -> None:
        self._blocks, self._mesh = blocks, mesh
        self.signature = layout.signature(layout.names(model))
        self.layers = {
            join_path(path): layer_kind(roles.role(module), type(module).__name__)
            for path, module in nnx.iter_modules(model)
        }
        model.eval()
        self._eval_graph, _, _ = nnx.split(model, nnx.Param, nnx.BatchStat)
        model.train()
        self._graph, *states = nnx.split(model, nnx.Param, nnx.BatchStat)
        self.parameters, self.buffers = map(nnx.to_pure_dict, states)

    def train(
        self, parameters: Any, buffers: Any, images: jax.Array, recorded: bool = True
    ) -> tuple[jax.Array, Any, Outputs]:
        """See `Functional`."""
        del recorded  # outputs that nobody reads cost nothing
        model = self._merge(parameters, buffers, training=True)
        with (
            self._record(model) as outputs,
            rematerialisation.apply(model, self._blocks, outputs, self._record),
            name_scopes(model),
        ):
            logits = model(images)
        return logits, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)), outputs

    def evaluate(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Outputs]:
        """See `Functional`."""
        model = self._merge(parameters, buffers, training=False)
        with activations.record(model) as outputs:
            logits = model(images)
        return logits, outputs

    def run_layer(self, layer: str, parameters: Any, buffers: Any, inputs: jax.Array, training: bool) -> jax.Array:
        """See `Functional`."""
        model = self._merge(parameters, buffers, training)
        layers = {join_path(path): module for path, module in nnx.iter_modules(model)}
        if not layer or layer not in layers:
            raise Refused(f"there is no layer {layer!r}; allowed: {', '.join(filter(None, layers))}")
        return layers[layer](inputs)

    @contextmanager
    def _record(self, model: nnx.Module) -> Generator[Outputs]:
        with sharded_layers.shard(model, self._mesh), activations.record(model) as outputs:
            yield outputs

    def _merge(self, parameters: Any, buffers: Any, training: bool) -> Any:
        return nnx.merge(self._graph if training else self._eval_graph, parameters, buffers)


@contextmanager
def name_scopes(model: nnx.Module) -> Generator[None]:
    """Name the operations of every layer after its path while the context lasts. Profilers then show the layers."""

    def around(
        path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del module
        with jax.named_scope(path):
            return call(*inputs, **options)

    with activations.intercept({join_path(path): module for path, module in nnx.iter_modules(model) if path}, around):
        yield
