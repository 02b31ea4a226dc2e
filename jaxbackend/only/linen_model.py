"""A user's flax.linen model."""

import itertools
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import errors, linen, traverse_util
from flax.linen import transforms

from jaxbackend.activations import Around
from jaxbackend.only import run_settings
from jaxbackend.only.user_model import (
    DROPPED_PATHS,
    Arguments,
    Call,
    bind_axes,
    check_supported,
    describe_dropout,
    find_axes,
    find_layers,
    make_weight_norm_exact,
    names_axis,
    spell_path,
    switch_off_attention,
)
from jaxbackend.precision import Policy

_COLLECTIONS = ("params", "batch_stats")
_CALLS = itertools.count()


class LinenModel:
    """A linen module as a `jaxbackend.only.user_model.UserModel`.

    Collections other than `params` and `batch_stats` are constants.

    Unless `initialised`, variables are 0 and variances 1.
    """

    framework = "flax.linen"

    def __init__(
        self, module: Any, images: Any, initialised: bool, arguments: Arguments, policy: Policy, seed: int = 0
    ) -> None:
        self._modules: dict[bool, Any] = {  # their calls have signatures of their own
            training: module.clone(**run_settings.find_fields(module, training)) for training in (True, False)
        }
        self._flags = {training: run_settings.find_flags(module, training) for training in (True, False)}
        self._arguments, self._policy, self._seed = arguments, policy, seed
        self._dropout: dict[str, None] = {}
        self._names_axes = False
        self._running: list[Any] = []
        self.derived: set[str] = set()
        self.layers: tuple[str, ...] = ()
        self.axes: tuple[str, ...] = ()
        shapes = jax.eval_shape(self._initial, images)
        self._constants: dict[str, Any] = {}
        others = [name for name, state in shapes.items() if name not in _COLLECTIONS and not _is_sown(state)]
        if others:  # constants have values that only the model knows
            initial = jax.jit(self._initial)(jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), images))
            self._constants = {name: initial[name] for name in others}
        if initialised:
            shapes = self._initialised(images)
        self.parameters, self.buffers = (_arrays(shapes.get(name, {})) for name in _COLLECTIONS)
        self.layers = find_layers(self.parameters, self.buffers)
        self.dropout = tuple(self._dropout)
        state = {name: shapes.get(name, {}) for name in _COLLECTIONS}
        if self._names_axes:  # another trace, so only where one is needed
            self.axes = find_axes(lambda axes: jax.eval_shape(bind_axes(self._apply, axes), state, images))

    def own_name(self, path: tuple[Any, ...], is_parameter: bool) -> str:
        """See `UserModel`."""
        return f"{'params' if is_parameter else 'batch_stats'}/{spell_path(path)}"

    def run(self, parameters: Any, buffers: Any, images: Any, *, training: bool, around: Around) -> tuple[Any, Any]:
        """See `UserModel`."""
        state = {"params": parameters, "batch_stats": buffers}
        with self._intercepted(around):
            result, changed = bind_axes(partial(self._apply, training=training), self.axes)(state, images)
        old: dict[Any, Any] = traverse_util.flatten_dict(buffers)
        new: dict[Any, Any] = traverse_util.flatten_dict(changed.get("batch_stats", {}))
        return result, traverse_util.unflatten_dict(
            {path: new[path].astype(array.dtype) if path in new else array for path, array in old.items()}
        )

    def unbind(self, module: Any) -> Any:
        """See `UserModel`."""
        return module.unbind()[0]

    def run_layer(self, path: str, call: Call, parameters: Any, buffers: Any, inputs: Any, *, training: bool) -> Any:
        """See `UserModel`."""
        del training  # the call's own options tell it
        variables = {"params": _part(parameters, path), "batch_stats": _part(buffers, path)}
        variables |= {name: _part(state, path) for name, state in self._constants.items()}

        def apply(variables: Any, inputs: Any) -> Any:
            return call.module.apply(variables, inputs, *call.inputs, **call.options, mutable=["batch_stats"])[0]

        with self._intercepted(None):
            return bind_axes(apply, self.axes)(variables, inputs)

    def _apply(self, state: Any, images: Any, training: bool = True) -> Any:
        inputs, named = self._arguments(images)
        return self._modules[training].apply(
            {**state, **self._constants}, *inputs, **named, **self._flags[training], mutable=["batch_stats"]
        )

    def _initial(self, images: Any) -> Any:
        inputs, named = self._arguments(images)
        named |= self._flags[True]
        with self._intercepted(None):
            return self._modules[True].init(jax.random.key(self._seed), *inputs, **named)

    def _initialised(self, images: Any) -> Any:
        """Return the initial values. Unless they depend on images, no layer runs or is compiled for them."""
        inputs, named = self._arguments(images)
        named |= self._flags[True]
        try:
            with self._intercepted(None):
                return self._modules[True].lazy_init(jax.random.key(self._seed), *inputs, **named)
        except errors.LazyInitError:
            return jax.jit(self._initial)(jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), images))

    @contextmanager
    def _intercepted(self, around: Around | None) -> Generator[None]:
        """Give layers the run's settings, and let `around` see every call, also under `nn.jit`.

        `nn.jit` traces equal modules once. A key of its own for each call lets it trace all.
        """
        keys: Any = transforms._HashableProxy
        made = vars(keys)["from_module"]
        keys.from_module = lambda module: keys(weakref.ref(module), next(_CALLS))
        try:
            with linen.intercept_methods(self._interceptor(around)):
                yield
        finally:
            keys.from_module = made

    def _interceptor(self, around: Around | None) -> Any:
        def intercept(call: Any, inputs: Any, named: Any, context: Any) -> Any:
            if context.method_name != "__call__":
                return call(*inputs, **named)
            self._names_axes = self._names_axes or names_axis(context.module)
            path = spell_path(context.module.path)
            check_supported(path, context.module)
            make_weight_norm_exact(context.module, self._policy)
            dtype = run_settings.choose_dtype(context.module, self._policy)
            if dtype is not None:
                object.__setattr__(context.module, "dtype", dtype)  # a bound module belongs to this pass
            if attention := switch_off_attention(path, context.module):
                self._dropout[attention] = None
            if isinstance(context.module, linen.Dropout) or type(context.module).__name__ in DROPPED_PATHS:
                self._dropout[describe_dropout(path, context.module)] = None
                return inputs[0] if inputs else next(iter(named.values()))
            is_inner = any(module is context.module for module in self._running)
            if is_inner:
                self.derived.add(path)
            is_layer = path in self.layers and (is_inner or path not in self.derived)
            self._running.append(context.module)
            try:
                if around is None or not is_layer:
                    return call(*inputs, **named)
                return around(path, context.module, call, inputs, named)
            finally:
                self._running.pop()

        return intercept


def _is_sown(state: Any) -> bool:
    """Tell whether a collection has only values that `sow` has put there, which a step need not keep."""
    return all(isinstance(value, tuple) for value in traverse_util.flatten_dict(state).values())


def _arrays(shapes: Any) -> Any:
    flat: dict[Any, Any] = traverse_util.flatten_dict(shapes)
    return traverse_util.unflatten_dict(
        {path: value if isinstance(value, jax.Array) else _constant(path, value) for path, value in flat.items()}
    )


def _constant(path: tuple[str, ...], shape: Any) -> jax.Array:
    # NumPy makes it: JAX would compile a program for every shape.
    return jax.device_put((np.ones if path[-1] == "var" else np.zeros)(shape.shape, shape.dtype))


def _part(state: Any, path: str) -> Any:
    flat: dict[Any, Any] = traverse_util.flatten_dict(state)
    prefix = () if path == spell_path(()) else tuple(path.split("/"))
    inside = {inner[len(prefix) :]: value for inner, value in flat.items() if inner[: len(prefix)] == prefix}
    return traverse_util.unflatten_dict(inside)
