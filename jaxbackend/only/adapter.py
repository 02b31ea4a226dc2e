"""A user's model under the neutral names of its pair's table, as the training step and the session know models."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from compare.base.interface import Refused
from compare.base.names import Names
from jaxbackend import roles
from jaxbackend.activations import Around
from jaxbackend.layout import Leaf, Leaves
from jaxbackend.only.functional import Outputs, shapes
from jaxbackend.only.user_model import Call, Own, guarded, spelt
from jaxbackend.precision import Policy


class Adopted:
    """A user's model as `jaxbackend.only.functional.Functional`.

    Raises:
        Refused: the table names what the model has not; the model cannot be run on the images, or does not compute in
            the policy's dtype.
    """

    def __init__(self, model: Own, reference: str, table: Names, image: tuple[int, int, int], policy: Policy) -> None:
        self._model, self._reference, self._table = model, reference, table
        # A factory that does not take `param_dtype` makes float32. Cast by NumPy: JAX would compile each shape's cast.
        self.parameters, self.buffers = (
            jax.tree.map(lambda each: jax.device_put(np.asarray(each, policy.parameter_dtype)), state)
            for state in (model.parameters, model.buffers)
        )
        model.parameters, model.buffers = map(shapes, (model.parameters, model.buffers))
        self.signature = {each.name: each.shape for each in table.variables}
        self._images = jax.ShapeDtypeStruct((2, *image), policy.parameter_dtype)
        self._own = {neutral: own for own, neutral in table.layers.items()}
        self._calls: dict[bool, dict[str, Call]] = {}
        self._check_dtypes(policy)
        self.leaves: Leaves | None = self._crossing()
        self.layers: Mapping[str, str] = {
            table.layers[path]: roles.role(call.module)
            for path, call in self._seen(training=True).items()
            if path in table.layers
        }

    def train(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Any, Outputs]:
        """See `jaxbackend.only.functional.Functional`."""
        recorder = _Recorder(self._table.layers, inputs=True)
        logits, buffers = self._model.run(parameters, buffers, images, training=True, around=recorder)
        return logits, buffers, recorder.found

    def evaluate(self, parameters: Any, buffers: Any, images: jax.Array) -> tuple[jax.Array, Outputs]:
        """See `jaxbackend.only.functional.Functional`."""
        recorder = _Recorder(self._table.layers, inputs=False)
        logits, _ = self._model.run(parameters, buffers, images, training=False, around=recorder)
        return logits, recorder.found

    def run_layer(self, layer: str, parameters: Any, buffers: Any, inputs: jax.Array, training: bool) -> jax.Array:
        """See `jaxbackend.only.functional.Functional`."""
        path = self._own.get(layer)
        call = self._seen(training).get(path) if path else None
        if path is None or call is None:
            raise Refused(f"{self._reference}: there is no layer {layer!r}; allowed: {', '.join(self._own)}")
        if any(isinstance(each, jax.Array) for each in jax.tree.leaves((call.inputs, dict(call.options)))):
            raise Refused(f"{self._reference}: {path} takes more than one array and cannot be run alone")
        return guarded(
            lambda: self._model.run_layer(path, call, parameters, buffers, inputs, training=training), self._reference
        )

    def _seen(self, training: bool) -> dict[str, Call]:
        """Return each layer's first call in a pass; linen's modules exist in a pass only."""
        if training not in self._calls:
            calls = self._calls[training] = {}

            def around(path: str, module: Any, call: Callable[..., Any], inputs: Any, options: Any) -> Any:
                result = call(*inputs, **options)
                if path not in calls:
                    calls[path] = Call(self._model.unbound(module), inputs[1:], dict(options), result)
                return result

            guarded(lambda: self._pass(training, around), self._reference)
        return self._calls[training]

    def _pass(self, training: bool, around: Around) -> None:
        def logits(parameters: Any, buffers: Any, images: Any) -> Any:
            return self._model.run(parameters, buffers, images, training=training, around=around)[0]

        jax.eval_shape(logits, self.parameters, self.buffers, self._images)

    def _crossing(self) -> Leaves:
        seen = self._seen(training=True)
        crossings = {each.own: each for each in self._table.variables}
        found: dict[tuple[Any, ...], Leaf] = {}
        for state, is_parameter in ((self.parameters, True), (self.buffers, False)):
            for path in traverse_util.flatten_dict(state):
                crossing = crossings.pop(self._model.own_name(path, is_parameter), None)
                if crossing is not None:
                    turned = spelt(path[:-1]) in seen and roles.turned(seen[spelt(path[:-1])].module, path[-1])
                    found[path] = Leaf(crossing.name, crossing.shape, turned)
        if crossings:
            missing = next(iter(crossings))
            raise Refused(
                f"{self._reference}: the model has no {missing!r}, which the pair's table names; match it again"
            )
        return found

    def _check_dtypes(self, policy: Policy) -> None:
        calls = self._seen(training=True)
        products = [path for path, call in calls.items() if roles.role(call.module) in roles.PRODUCTS]
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
    """Stands for the calls of layers (`jaxbackend.activations.Around`).

    Keeps the outputs of named ones, and their `inputs` if asked.
    """

    def __init__(self, layers: Mapping[str, str], *, inputs: bool) -> None:
        self._layers, self._inputs = layers, inputs
        self._seen: dict[str, int] = {}
        self.found: OrderedDict[str, jax.Array] = (
            OrderedDict()
        )  # as a pytree it keeps its order, a dict would be sorted

    def __call__(
        self, path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del module
        self._seen[path] = self._seen.get(path, 0) + 1
        name = self._layers.get(path)
        if name is None:
            return call(*inputs, **options)
        name = name if self._seen[path] == 1 else f"{name}#{self._seen[path]}"
        if self._inputs and inputs and isinstance(inputs[0], jax.Array):
            self.found[f"{name}.input"] = inputs[0]
        result = call(*inputs, **options)
        if isinstance(result, jax.Array):
            self.found[name] = result
        return result
