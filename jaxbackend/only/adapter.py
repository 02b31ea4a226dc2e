"""A user's model under the neutral names of its pair's table, for the training step and the session."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.extend.core import get_opaque_trace_state

from compare.base.interface import Refused
from compare.base.names import Names
from compare.base.task import flatten_outputs
from compare.base.trace import AS_IT_IS, PRODUCTS, Layout
from jaxbackend import layout, roles
from jaxbackend.only import replay
from jaxbackend.only.functional import Outputs, shapes
from jaxbackend.only.user_model import Call, UserModel, guard, spell_path
from jaxbackend.precision import Policy


class AdaptedModel:
    """A user's model as `jaxbackend.only.functional.Functional`.

    Raises:
        Refused: the table names a variable that is missing. The model cannot run on the images, or does not compute in
            the policy's dtype.
    """

    def __init__(
        self, model: UserModel, reference: str, table: Names, image: tuple[int, int, int], policy: Policy
    ) -> None:
        self._model, self._reference, self._table = model, reference, table
        # A factory without the argument `param_dtype` makes float32. NumPy casts: JAX would compile a cast a shape.
        self.parameters, self.buffers = (
            jax.tree.map(lambda array: jax.device_put(np.asarray(array, policy.parameter_dtype)), state)
            for state in (model.parameters, model.buffers)
        )
        model.parameters, model.buffers = map(shapes, (model.parameters, model.buffers))
        self.signature = layout.signature(table)
        self._images = jax.ShapeDtypeStruct((2, *image), policy.parameter_dtype)
        self._paths = {name: path for path, name in table.layers.items()}
        self._calls: dict[bool, dict[str, Call]] = {}
        self._is_nested = False  # whether a layer is called inside of another trace, as by nn.remat
        self._check_dtypes(policy)
        self.leaves: layout.Leaves | None = self._find_leaves()
        self.layers: Mapping[str, str] = {
            table.layers[path]: roles.role(call.module)
            for path, call in self._find_calls(training=True).items()
            if path in table.layers
        }

    def train(
        self, parameters: Any, buffers: Any, images: jax.Array, recorded: bool = True
    ) -> tuple[jax.Array, Any, Outputs]:
        """See `jaxbackend.only.functional.Functional`."""
        recorder = _Recorder(self._table, inputs=True)
        if not self._is_nested:
            logits, buffers = self._model.run(parameters, buffers, images, training=True, around=recorder)
            return logits, buffers, recorder.outputs

        def run(parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Any]:
            around = _Recorder(self._table, inputs=recorded, keep=replay.mark if recorded else _forget)
            return self._model.run(parameters, buffers, images, training=True, around=around)

        if not recorded:
            return *run(parameters, buffers, images), {}
        (logits, buffers), outputs = replay.run(run, parameters, buffers, images)
        return logits, buffers, outputs

    def evaluate(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Outputs]:
        """See `jaxbackend.only.functional.Functional`."""
        recorder = _Recorder(self._table, inputs=False)
        if self._is_nested:
            marking = _Recorder(self._table, inputs=False, keep=replay.mark)
            model = partial(self._model.run, training=False, around=marking)
            (logits, _), outputs = replay.run(model, parameters, buffers, images)
            return logits, outputs
        logits, _ = self._model.run(parameters, buffers, images, training=False, around=recorder)
        return logits, recorder.outputs

    def run_layer(self, layer: str, parameters: Any, buffers: Any, inputs: jax.Array, training: bool) -> jax.Array:
        """See `jaxbackend.only.functional.Functional`."""
        path = self._paths.get(layer)
        call = self._find_calls(training).get(path) if path else None
        if path is None or call is None:
            raise Refused(f"{self._reference}: there is no layer {layer!r}; allowed: {', '.join(self._paths)}")
        if any(isinstance(value, jax.Array) for value in jax.tree.leaves((call.inputs, dict(call.options)))):
            raise Refused(f"{self._reference}: {path} takes more than one array and cannot be run alone")
        first, last = self._table.layouts.get(path, (AS_IT_IS, AS_IT_IS))
        own = bring_from_neutral(inputs, first)
        result = guard(
            lambda: self._model.run_layer(path, call, parameters, buffers, own, training=training), self._reference
        )
        return bring_to_neutral(result, last)

    def _find_calls(self, training: bool) -> dict[str, Call]:
        """Return each layer's first call in a pass. Linen's modules exist only in a pass."""
        if training not in self._calls:
            calls = self._calls[training] = {}
            outside: Any = None

            def around(path: str, module: Any, call: Callable[..., Any], inputs: Any, options: Any) -> Any:
                result = call(*inputs, **options)
                self._is_nested = self._is_nested or get_opaque_trace_state() != outside
                if path not in calls:
                    calls[path] = Call(self._model.unbind(module), inputs[1:], dict(options), result)
                return result

            def logits(parameters: Any, buffers: Any, images: Any) -> Any:
                nonlocal outside
                outside = get_opaque_trace_state()
                result = self._model.run(parameters, buffers, images, training=training, around=around)[0]
                return list(flatten_outputs(result, lambda value: isinstance(value, jax.Array)).values())

            def trace() -> None:
                jax.eval_shape(logits, self.parameters, self.buffers, self._images)

            guard(trace, self._reference)
        return self._calls[training]

    def _find_leaves(self) -> layout.Leaves:
        calls = self._find_calls(training=True)
        crossings = {crossing.own: crossing for crossing in self._table.variables}
        leaves: dict[tuple[Any, ...], layout.Leaf] = {}
        for state, is_parameter in ((self.parameters, True), (self.buffers, False)):
            flat: dict[Any, Any] = traverse_util.flatten_dict(state)
            for path, array in flat.items():
                crossing = crossings.pop(self._model.own_name(path, is_parameter), None)
                if crossing is not None:
                    call, turned = calls.get(spell_path(path[:-1])), False
                    if call is not None:
                        kind = roles.role(call.module)
                        _, _, turned = roles.variable(call.module, kind, str(path[-1]), array.shape)
                    leaves[path] = layout.Leaf(crossing.name, crossing.shape, turned, crossing.orders)
        if crossings:
            missing = next(iter(crossings))
            raise Refused(
                f"{self._reference}: the model has no {missing!r}, which the pair's table names; match it again"
            )
        return leaves

    def _check_dtypes(self, policy: Policy) -> None:
        calls = self._find_calls(training=True)
        products = [path for path, call in calls.items() if roles.role(call.module) in PRODUCTS]
        dtypes = {path: calls[path].result.dtype for path in calls if isinstance(calls[path].result, jax.Array)}
        wanted = policy.compute_dtype
        if wanted in (jnp.float32, jnp.float64):
            for path, dtype in dtypes.items():
                if jnp.issubdtype(dtype, jnp.floating) and dtype != wanted:
                    raise Refused(
                        f"{self._reference}: in {jnp.dtype(wanted)} layer {path} computes {dtype}; allowed: layers "
                        "without a dtype of their own, or with the one that the factory gets as argument `dtype`"
                    )
        elif not any(dtypes.get(path) == wanted for path in products):
            raise Refused(
                f"{self._reference}: in {jnp.dtype(wanted)} no convolution and no dense layer computes "
                f"{jnp.dtype(wanted)}; allowed: a factory that takes the argument `dtype` and gives it to its layers"
            )


class _Recorder:
    """Replaces the calls of layers (`jaxbackend.activations.Around`).

    It records the outputs of named layers, and their inputs if `inputs`. `keep` records them in another way.
    """

    def __init__(
        self, table: Names, *, inputs: bool, keep: Callable[[jax.Array, str], jax.Array] | None = None
    ) -> None:
        self._table, self._inputs, self._keep = table, inputs, keep
        self._counts: dict[str, int] = {}
        # A pytree that keeps its order, unlike a dict.
        self.outputs: OrderedDict[str, jax.Array] = OrderedDict()

    def __call__(
        self, path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del module
        count = self._counts[path] = self._counts.get(path, 0) + 1
        name = self._table.layers.get(path)
        if name is None:
            with jax.named_scope(path):
                return call(*inputs, **options)
        first, last = self._table.layouts.get(path, (AS_IT_IS, AS_IT_IS))
        name = name if count == 1 else f"{name}#{count}"
        if self._inputs and (arrays := _arrays_in((inputs, options))):
            self._record(arrays[0], f"{name}.input", first)
        with jax.named_scope(name):
            result = call(*inputs, **options)
        if arrays := _arrays_in(result):
            self._record(arrays[0], name, last)
        return result

    def _record(self, value: jax.Array, name: str, order: Layout) -> None:
        neutral = bring_to_neutral(value, order)
        if self._keep is None:
            self.outputs[name] = neutral
        else:
            self._keep(neutral, name)


def _forget(value: jax.Array, _name: str) -> jax.Array:
    return value


def _arrays_in(values: Any) -> list[jax.Array]:
    leaves = [jnp.asarray(value) if isinstance(value, np.ndarray) else value for value in jax.tree.leaves(values)]
    return [value for value in leaves if isinstance(value, jax.Array)]


def bring_to_neutral(array: jax.Array, layout: Layout) -> jax.Array:
    """Return an activation in neutral order, as its layout tells. A layout of another size does not apply."""
    if len(layout.axes) == array.ndim and layout.axes != tuple(range(array.ndim)):
        array = array.transpose(layout.axes)
    return array.take(np.asarray(layout.features), axis=-1) if len(layout.features) == array.shape[-1] else array


def bring_from_neutral(array: jax.Array, layout: Layout) -> jax.Array:
    """Undo `bring_to_neutral`."""
    if len(layout.features) == array.shape[-1]:
        array = array.take(np.argsort(layout.features), axis=-1)
    return array.transpose(np.argsort(layout.axes)) if len(layout.axes) == array.ndim else array
