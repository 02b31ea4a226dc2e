"""One traced forward pass of a user's model: its layers in execution order, and the functions between them."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest import mock

import jax
import numpy as np
from flax import linen, traverse_util
from jax.ad_checkpoint import checkpoint_name

from compare.base.element_order import ElementOrder
from compare.base.interface import Refused
from compare.base.task import flatten_outputs
from compare.base.trace import IMAGES, VARIABLES, Layer, Layout, Trace, Variable, number_call, take_padding
from compare.base.workloads import ModelSpec
from compare.worker import factories
from jaxbackend import layers, precision, roles
from jaxbackend.only import exact_attention, own_norms
from jaxbackend.only.program_flow import ENTERED, IMAGES_ORIGIN, LEFT, Flow, Reach, follow, name_functions
from jaxbackend.only.user_model import (
    DRAWS,
    EXACT_WEIGHT_NORM,
    UserModel,
    describe_inputs,
    guard,
    is_weight_norm,
    spell_path,
)
from jaxbackend.user_models import build


def trace(spec: ModelSpec, batch_size: int) -> Trace:
    """Return the trace of a user's model in one training-mode pass over so many images, at float32.

    Raises:
        Refused: as `build`. The pass raises or draws random numbers. The logits have another shape.
    """
    policy = precision.policy("float32", "cpu")
    with policy.scope(), exact_attention.watch() as attended:
        built = build(spec, policy)
        images = describe_inputs(spec.inputs, spec.image, batch_size, policy.parameter_dtype)
        passed = guard(lambda: _pass(built.model, images), built.reference)
    if passed.flow.draws:
        raise Refused(f"{built.reference}: {DRAWS}")
    logits = passed.flow.logits
    return Trace(
        framework=built.model.framework,
        layers=tuple(passed.layers()),
        output=next(iter(passed.outputs.values())),
        outputs=passed.outputs,
        after=passed.paths(logits.origins),
        between=name_functions(logits),
        unused=passed.unused,
        reused=passed.find_reused(),
        dropout=built.dropout,
        source_sha256=factories.add_source(built.source_sha256, spec.arguments.get("losses", {}).get("jax")),
        notes=(*built.notes, *_note_exactness(passed, bool(attended))),
    )


@dataclass(frozen=True)
class _Held:
    """A variable: its own name, its attribute in its module, and its shape in the model."""

    own: str
    attribute: str
    shape: tuple[int, ...]
    is_parameter: bool


@dataclass
class _Call:
    """One call of a module that holds variables."""

    path: str
    module: Any
    arguments: Mapping[str, Any]
    input: tuple[int, ...]
    outside: int | None  # the number of the call around it
    output: tuple[int, ...] = ()


@dataclass
class _Pass:
    calls: list[_Call]
    held: Mapping[str, list[_Held]]
    numbers: Mapping[str, int]
    unused: tuple[str, ...]
    derived: set[str]
    flow: Flow
    outputs: Mapping[str, tuple[int, ...]]

    def paths(self, origins: frozenset[int]) -> tuple[str, ...]:
        """Return the layers of these numbers in order of execution."""
        inner = sorted({self._find_inner(number) for number in origins})
        return tuple(IMAGES if number == IMAGES_ORIGIN else self._names[number] for number in inner)

    def _find_inner(self, number: int) -> int:
        """Return the number of the layer of a weight norm, which computes its weight."""
        if number == IMAGES_ORIGIN or not is_weight_norm(self.calls[number].module):
            return number
        return next(other for other, call in enumerate(self.calls) if call.outside == number)

    def _list_lengths(self, number: int) -> list[Variable]:
        """Return the variables of the weight norm around a call, if there is one."""
        outside = self.calls[number].outside
        if outside is None or not is_weight_norm(self.calls[outside].module):
            return []
        held = self.held[self.calls[outside].path]
        return [Variable(each.own, "scale", each.shape, each.is_parameter) for each in held]

    def layers(self) -> Iterator[Layer]:
        """Yield every call of a layer in order of execution."""
        for number, name in self._names.items():
            if is_weight_norm(self.calls[number].module):
                continue
            lengths = self._list_lengths(number)
            call, reach, kind = self.calls[number], self.flow.entered.get(number, Reach()), self._role(number)
            left = self.flow.left.get(number, Reach())
            convolution = next(iter(self.flow.convolutions.get(number, [])), None)
            first = name == call.path
            layouts = [_find_layout(kind, orders.get(number)) for orders in (self.flow.inputs, self.flow.outputs)]
            variables = tuple(map(self._complete, _variables(call.module, kind, self.held[call.path])))
            settings, role = roles.settings(call.module, kind, convolution, call.arguments), kind
            inside = sum(number in self._holders(other) for other in range(len(self.calls)))
            if kind == "parameters" and not inside:
                numbered = [(each, self.numbers[each.own]) for each in variables]
                norm = own_norms.find_norm(self.flow, number, numbered, (*call.input, 0)[-1])
                if norm is not None:
                    role, variables, settings = norm.role, norm.variables, norm.settings
            own = Layer("", role, (), settings, (), (), (), tuple(self.flow.pads[number][:1]))
            yield Layer(
                path=name,
                role=role,
                variables=(*variables, *lengths) if first else (),
                settings=take_padding(own).settings,
                input=_neutral_shape(call.input, layouts[0]),
                output=_neutral_shape(call.output, layouts[1]),
                after=self.paths(reach.origins),
                between=name_functions(reach),
                written=roles.read_as_written(call.module),
                input_layout=layouts[0],
                output_layout=layouts[1],
                inside=inside,
                is_module=roles.is_flat(call.module) and not lengths and call.path not in self.derived,
                is_recorded=roles.is_flat(call.module),
                is_looped=any(self.calls[other].path == call.path for other in self.flow.looped),
                last=self.paths(left.origins),
                until_end=name_functions(left),
                applied=name_functions(Reach(words=frozenset(self.flow.applied[number]))),
            )

    def find_reused(self) -> tuple[str, ...]:
        """Return the parameters that are also used outside their layer's own call."""
        owners = {each.own: path for path, held in self.held.items() for each in held if each.is_parameter}
        return tuple(
            own
            for own, number in self.numbers.items()
            if len(self._find_places(number)) > 1 and roles.ROOT not in (owners.get(own), "")
        )

    def _find_places(self, number: int) -> set[str]:
        """Return the paths of the layers that use a parameter, `ROOT` outside of layers."""
        users = self.flow.users.get(number, ())
        return {roles.ROOT if user is None else self.calls[user].path for user in users}

    def _holders(self, number: int) -> list[int]:
        """Return the numbers of the calls around a call."""
        outside = self.calls[number].outside
        return [] if outside is None else [outside, *self._holders(outside)]

    def _complete(self, variable: Variable) -> Variable:
        """Return a variable with its use, the moment of it and the orders of its axes."""
        number = self.numbers[variable.own]
        orders, use = self.flow.orders.get(number, {}), self.flow.uses.get(number, "")
        axes = tuple(orders.get(axis, ()) for axis in range(len(variable.shape))) if orders else ()
        return replace(variable, orders=axes, use=use, moment=self.flow.moments.get(number, 0))

    @cached_property
    def _names(self) -> dict[int, str]:
        names: dict[str, int] = {}
        for number, call in enumerate(self.calls):
            names[number_call(call.path, names)] = number
        return {number: name for name, number in names.items()}

    def _role(self, number: int) -> str:
        call = self.calls[number]
        known = roles.role(call.module)
        kernels = {len(variable.shape) for variable in self.held[call.path] if variable.attribute == "kernel"}
        if known == "parameters" and kernels == {4} and number in self.flow.convolutions:
            return "convolution"  # written by the user
        if known == "parameters" and kernels == {2} and "dot_general" in self.flow.inside.get(number, ()):
            return "dense"
        return known


def _pass(model: UserModel, images: Any) -> _Pass:
    calls: list[_Call] = []
    running: list[int] = []

    def around(path: str, module: Any, call: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        number = len(calls)
        arrays = [value for value in jax.tree.leaves((inputs, options)) if isinstance(value, (jax.Array, np.ndarray))]
        arguments = _bind_arguments(module, inputs, options)
        outside = running[-1] if running else None
        calls.append(_Call(path, module, arguments, arrays[0].shape if arrays else (), outside))
        inputs, options = _mark((inputs, options), f"{ENTERED}{number}")
        running.append(number)
        try:
            result = call(*inputs, **options)
        finally:
            running.pop()
        calls[number].output = getattr(result, "shape", ())
        return result if path == roles.ROOT else _mark(result, f"{LEFT}{number}")  # nothing comes after the whole model

    flat: list[dict[Any, Any]] = [traverse_util.flatten_dict(state) for state in (model.parameters, model.buffers)]

    def logits(values: list[list[jax.Array]], images: Any) -> list[jax.Array]:
        parameters, buffers = (
            traverse_util.unflatten_dict(dict(zip(paths, arrays, strict=True)))
            for paths, arrays in zip(flat, values, strict=True)
        )
        result, _ = model.run(parameters, buffers, images, training=True, around=around)
        arrays = flatten_outputs(result, lambda value: isinstance(value, jax.Array))
        if not arrays:
            raise Refused("the model returns no array; allowed: one array of logits, or several arrays")
        names.extend(arrays)
        return list(arrays.values())

    names = list[str]()
    values = [[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in state.values()] for state in flat]
    with _plain_pools():
        program = jax.make_jaxpr(logits)(values, images)
    held, count = _group_variables(model, flat), len(jax.tree.leaves(images))
    read = {id(variable) for equation in program.jaxpr.eqns for variable in equation.invars}
    own = [model.own_name(path, first) for state, first in zip(flat, (True, False), strict=True) for path in state]
    unused = [name for name, at in zip(own, program.jaxpr.invars[:-count], strict=True) if id(at) not in read]
    outputs = {name: output.shape for name, output in zip(names, program.out_avals, strict=True)}
    numbers = {name: number for number, name in enumerate(own)}
    return _Pass(calls, held, numbers, tuple(unused), model.derived, follow(program, count), outputs)


def _note_exactness(passed: _Pass, is_attended: bool) -> Iterator[str]:
    """Yield a note for each function that is exact in the certificate, and not in a training."""
    if is_attended:
        yield exact_attention.NOTE
    if any(is_weight_norm(call.module) for call in passed.calls):
        yield EXACT_WEIGHT_NORM


def _mark(values: Any, mark: str) -> Any:
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, mark) if isinstance(leaf, jax.Array) else leaf, values)


def _group_variables(model: UserModel, flat: list[dict[Any, Any]]) -> dict[str, list[_Held]]:
    held: dict[str, list[_Held]] = {path: [] for path in model.layers}
    for variables, is_parameter in zip(flat, (True, False), strict=True):
        for path, array in variables.items():
            own = model.own_name(path, is_parameter)
            held[spell_path(path[:-1])].append(_Held(own, str(path[-1]), array.shape, is_parameter))
    return held


def _variables(module: Any, kind: str, held: list[_Held]) -> tuple[Variable, ...]:
    order = {attribute: place for place, attribute in enumerate(VARIABLES)}
    variables: list[Variable] = []
    for variable in sorted(held, key=lambda variable: order.get(variable.attribute, len(order))):
        role, shape, _ = roles.variable(module, kind, variable.attribute, variable.shape)
        variables.append(Variable(variable.own, role, shape, variable.is_parameter))
    return tuple(variables)


def _find_layout(kind: str, order: ElementOrder | None) -> Layout:
    """Return how an input or output comes into the neutral order. Flax's known layers have the neutral axes."""
    if order is None or not order.shape:
        return Layout()
    return Layout(order.axes() if kind == "parameters" else (), order.features() if len(order.shape) == 2 else ())


def _neutral_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in layout.axes) if len(layout.axes) == len(shape) else shape


def _bind_arguments(module: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a module's call by name."""
    try:
        return dict(inspect.signature(type(module).__call__).bind(module, *inputs, **options).arguments)
    except TypeError:  # the layer has a wrapper with another signature
        return dict(options)


@contextmanager
def _plain_pools() -> Iterator[None]:
    """Let the twins' max-pool, which a user's model may contain, trace as XLA's own, so that it has its name."""

    def pool(self: layers.MaxPool, x: jax.Array) -> jax.Array:
        sides: Any = [(self.padding, self.padding)] * 2
        return linen.max_pool(x, (self.size,) * 2, (self.stride,) * 2, padding=sides)

    with mock.patch.object(layers.MaxPool, "__call__", pool):
        yield
