"""A user's flax.nnx model."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
from flax import nnx

from compare.base.interface import Refused
from jaxbackend import roles
from jaxbackend.activations import PATH, Around, intercept
from jaxbackend.only import run_settings
from jaxbackend.only.user_model import (
    DROPPED_PATHS,
    Arguments,
    Call,
    bind_axes,
    call_plainly,
    check_supported,
    describe_dropout,
    find_axes,
    find_layers,
    find_rate,
    names_axis,
    spell_path,
    switch_off_attention,
)
from jaxbackend.precision import Policy


class NnxModel:
    """`jaxbackend.only.user_model.UserModel` of an nnx module."""

    framework = "flax.nnx"

    def __init__(self, module: nnx.Module, images: Any, arguments: Arguments, policy: Policy) -> None:
        self._arguments = arguments
        modules = list(nnx.iter_modules(module))
        layers = [_switch_off_dropout(spell_path(path), inner) for path, inner in modules]
        self.dropout = tuple(filter(None, layers))
        for path, inner in modules:
            check_supported(spell_path(path), inner)
            dtype = run_settings.choose_dtype(inner, policy)
            if dtype is not None:
                setattr(inner, "dtype", dtype)  # noqa: B010 -- modules have attributes of their own
        self._options = {training: run_settings.find_flags(module, training) for training in (True, False)}
        self._graphs: dict[bool, Any] = {}
        for training in (False, True):
            module.train() if training else module.eval()
            for name, value in run_settings.find_fields(module, training).items():
                setattr(module, name, value)
            parts = nnx.split(module, nnx.Param, nnx.BatchStat, ...)
            self._graphs[training], *states, self._constants = parts
            self.parameters, self.buffers = map(nnx.to_pure_dict, states)
        self.layers = find_layers(self.parameters, self.buffers)
        self.axes: tuple[str, ...] = ()
        self._kinds = dict[str, type]()
        if any(names_axis(inner) for _, inner in modules):  # another trace, so only where one is needed
            self.axes = find_axes(lambda axes: self._try_axes(axes, images))
        if kinds := _list_base_classes(modules):  # another trace, too
            self._kinds, called = kinds, set[str]()

            def note(path: str, _module: Any, call: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
                called.add(path)
                return call(*inputs, **options)

            jax.eval_shape(partial(self.run, training=True, around=note), self.parameters, self.buffers, images)
            self._kinds = {path: kind for path, kind in kinds.items() if path in called}
        self.derived = set(self._kinds)

    def own_name(self, path: tuple[Any, ...], is_parameter: bool) -> str:
        """See `UserModel`."""
        del is_parameter
        return spell_path(path)

    def run(self, parameters: Any, buffers: Any, images: Any, *, training: bool, around: Around) -> tuple[Any, Any]:
        """See `UserModel`."""

        def call(parameters: Any, buffers: Any, images: Any) -> tuple[Any, Any]:
            model, modules = self._merged(parameters, buffers, training)
            layers = {path: modules[path] for path in self.layers if path in modules}
            for path, module in layers.items():
                setattr(module, PATH, path)
            inputs, named = self._arguments(images)
            with intercept(layers, around, self._kinds):
                result = model(*inputs, **named, **self._options[training])
            self._refuse_changes(model)
            return result, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))

        result, new = bind_axes(call, self.axes)(parameters, buffers, images)
        return result, jax.tree.map(lambda array, old: array.astype(old.dtype), new, buffers)

    def _try_axes(self, axes: tuple[str, ...], images: Any) -> None:
        self.axes = axes
        plain = partial(self.run, training=True, around=call_plainly)
        jax.eval_shape(plain, self.parameters, self.buffers, images)

    def unbind(self, module: Any) -> Any:
        """See `UserModel`."""
        return module

    def run_layer(self, path: str, call: Call, parameters: Any, buffers: Any, inputs: Any, *, training: bool) -> Any:
        """See `UserModel`."""

        def run(parameters: Any, buffers: Any, inputs: Any) -> Any:
            _, modules = self._merged(parameters, buffers, training)
            return modules[path](inputs, *call.inputs, **call.options)

        return bind_axes(run, self.axes)(parameters, buffers, inputs)

    def _refuse_changes(self, model: Any) -> None:
        """Refuse a model that has changed other variables than statistics: the next step would not see the change."""
        before = {path: variable.get_value() for path, variable in nnx.to_flat_state(self._constants)}
        for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.Any(nnx.Param, nnx.BatchStat)))):
            if not isinstance(variable, nnx.RngState) and variable.get_value() is not before.get(path):
                kind = type(variable).__name__
                raise Refused(f"the model changes {spell_path(path)!r}, a {kind}; allowed: to change a BatchStat")

    def _merged(self, parameters: Any, buffers: Any, training: bool) -> tuple[Any, dict[str, Any]]:
        # A copy, so that the model belongs to this trace.
        model: Any = nnx.merge(self._graphs[training], parameters, buffers, self._constants, copy=True)
        return model, {spell_path(path): module for path, module in nnx.iter_modules(model)}


def _list_base_classes(modules: Iterable[tuple[Any, Any]]) -> dict[str, type]:
    """Return the flax class of each layer, if the layer's own class overrides its call."""
    kinds = dict[str, type]()
    for path, module in modules:
        kind = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("flax."))
        if roles.role(module) != "parameters" and type(module).__call__ is not kind.__call__:
            kinds[spell_path(path)] = kind
    return kinds


def _switch_off_dropout(path: str, module: Any) -> str | None:
    """Set the rate of a dropout module to 0. Return its path with the rate, or None if it is another module."""
    is_dropout = isinstance(module, nnx.Dropout) or type(module).__name__ in DROPPED_PATHS
    attribute = find_rate(module) if is_dropout else None
    if attribute is None:
        return switch_off_attention(path, module)
    described = describe_dropout(path, module)
    setattr(module, attribute, 0.0)
    return described
