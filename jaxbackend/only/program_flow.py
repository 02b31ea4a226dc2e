"""Which layers and functions each value of a user's flax model comes from, read from one traced program.

In the program, marks on its inputs and on its output enclose a call of a layer (`jax.ad_checkpoint.checkpoint_name`,
which computes nothing).
"""

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from compare.base.element_order import Bindings, ElementOrder, own_order
from compare.base.trace import PADDING
from jaxbackend.only import order_rules, primitive_names
from jaxbackend.only.order_rules import NOTHING, Elements, OrderRules

ENTERED, LEFT = "samestep entered ", "samestep left "
"""Marks of a call; its number follows."""

IMAGES_ORIGIN = -1

_MOST_INPUTS = 1000  # of a function
_USES = {"mul": "scale", "add": "bias", "add_any": "bias", "sub": "bias", "div": "scale"}
_ARITHMETIC = ("sqrt", "rsqrt", "mul", "div", "add", "sub", "integer_pow", "pow", "convert_element_type")
_DRAWS = ("random_bits", "random_fold_in", "random_split", "threefry2x32", "rng_bit_generator")


@dataclass(frozen=True)
class Reach:
    """Where a value comes from.

    Attributes:
        origins: the numbers of the nearest calls.
        words: the primitives since these calls, numbered in order.
        inside: the number of the call that computes the value, None outside of calls.
        elements: the order of its elements.
        constant: its number, if it is one that comes from no data.
        form: `square`, or `variance` for what is left of a value without a square, else empty.
        sources: the numbers of the parameters that the value comes from, as long as it comes from no data.
    """

    origins: frozenset[int] = frozenset()
    words: frozenset[tuple[int, str]] = frozenset()
    inside: int | None = None
    elements: Elements = field(default=NOTHING, compare=False)
    constant: float | None = field(default=None, compare=False)
    form: str = field(default="", compare=False)
    sources: frozenset[int] = field(default=frozenset(), compare=False)


@dataclass
class Flow:
    """The result of `follow`.

    Attributes:
        entered: the reach of a call's inputs, by the call's number.
        convolutions: the parameters of XLA's convolutions inside a call, and `kernel`, their height and width.
        inside: the primitives inside a call.
        draws: whether the program draws random numbers.
        logits: the reach of the result.
        inputs, outputs: the orders of the elements of a call's first input and of its output, by the call's number.
        orders: the neutral orders of parameters by their number and axis.
        reductions: the neutral axes of each reduction inside a call: N for the batch, S for positions, C for channels.
        roots: the constant that is added before each square root inside a call, None where there is none.
        uses: `scale` or `bias` by the number of a parameter that multiplies or is added.
        moments: the moment of the first use with data by the number of a parameter.
        users: the numbers of the calls that use a parameter with data, None outside of calls, by its number.
        left: the reach of a call's result inside of it, by the call's number.
        factors: by the number of a parameter or buffer, the constant that multiplies it.
        looped: the numbers of calls within a loop of the program.
        pads: the zeros that a call pads around positions, by the call's number.
        applied: the primitives of a call's result and of no other call's, numbered in order, by the call's number.
    """

    entered: dict[int, Reach] = field(default_factory=dict)
    convolutions: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    inside: dict[int, set[str]] = field(default_factory=dict)
    draws: bool = False
    logits: Reach = Reach()
    inputs: dict[int, ElementOrder | None] = field(default_factory=dict)
    outputs: dict[int, ElementOrder | None] = field(default_factory=dict)
    orders: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    reductions: dict[int, list[frozenset[str]]] = field(default_factory=lambda: defaultdict(list))
    roots: dict[int, list[float | None]] = field(default_factory=lambda: defaultdict(list))
    uses: dict[int, str] = field(default_factory=dict)
    moments: dict[int, int] = field(default_factory=dict)
    users: dict[int, set[int | None]] = field(default_factory=lambda: defaultdict(set))
    left: dict[int, Reach] = field(default_factory=dict)
    factors: dict[int, float] = field(default_factory=dict)
    looped: set[int] = field(default_factory=set)
    pads: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    applied: dict[int, set[tuple[int, str]]] = field(default_factory=lambda: defaultdict(set))


def follow(program: Any, inputs: int = 1) -> Flow:
    """Return the flow of a closed jaxpr. Its last `inputs` arguments are the images. Its first result are logits."""
    bindings, kinds = Bindings(), [variable.aval for variable in program.jaxpr.invars]
    while True:
        walker = _Walker(bindings)
        reaches = [
            Reach(elements=_number_elements(number, kind), sources=frozenset({number}))
            for number, kind in enumerate(kinds[:-inputs])
        ]
        for kind in kinds[-inputs:]:
            order = own_order(kind.shape) if kind.shape else None
            reaches.append(Reach(frozenset({IMAGES_ORIGIN}), elements=Elements(order)))
        walker.flow.logits = walker.walk(program.jaxpr, reaches)[0]
        walker.flow.orders = walker.rules.variables
        if not bindings.new:
            return walker.flow
        bindings = Bindings({**bindings.known, **bindings.new})


def _number_elements(number: int, kind: Any) -> Elements:
    size = math.prod(kind.shape)
    return Elements(None, number, np.arange(size, dtype=np.int64).reshape(kind.shape))


def name_functions(reach: Reach) -> tuple[str, ...]:
    """Return the functions since the nearest layers, in order of execution, by names that both frameworks share."""
    return primitive_names.shared_names([word for _, word in sorted(reach.words)], _written_out())


class _Walker:
    def __init__(self, bindings: Bindings) -> None:
        self._moment = self._loops = 0
        self.flow = Flow()
        self.rules = OrderRules(bindings)
        self._added: dict[Any, float] = {}  # the constant in a sum, by the sum's variable

    def walk(self, jaxpr: Any, reaches: list[Reach]) -> list[Reach]:
        """Return the reaches of a program's results."""
        known: dict[Any, Reach] = dict(zip(jaxpr.invars, reaches, strict=True))

        def reach(variable: Any) -> Reach:
            is_literal = hasattr(variable, "val")  # a literal has no hash
            return Reach(constant=_read_constant(variable)) if is_literal else known.get(variable, Reach())

        for equation in jaxpr.eqns:
            self._moment += 1
            results = self._results(equation, [reach(variable) for variable in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [reach(variable) for variable in jaxpr.outvars]

    def _results(self, equation: Any, inputs: list[Reach]) -> list[Reach]:
        kind, count, inner = equation.primitive.name, len(equation.outvars), _inner(equation)
        self.flow.draws = self.flow.draws or kind in _DRAWS
        if kind == "name":
            return [self._pass_mark(equation.params["name"], inputs[0])]
        word = primitive_names.function_name(equation, inner)
        if word is None and inner is not None and len(inner.invars) == len(inputs) and len(inner.outvars) == count:
            if kind not in ("scan", "while"):
                return self.walk(inner, inputs)
            self._loops += 1
            results = self.walk(inner, [replace(reach, elements=NOTHING) for reach in inputs])  # of another shape
            self._loops -= 1
            return results
        joined = _union(inputs)
        for place, reach in enumerate(inputs if joined.origins else ()):
            for parameter in reach.sources:
                self.flow.moments.setdefault(parameter, self._moment * _MOST_INPUTS + place)
                self.flow.users[parameter].add(joined.inside)
        sources = frozenset[int]().union(*(() if joined.origins else (reach.sources for reach in inputs)))
        self._look_inside(joined.inside, equation)
        if (constant := _compute_constant(equation, inputs)) is not None:
            return [Reach(constant=constant)]
        factor = next((reach.constant for reach in inputs[1 if kind == "div" else 0 :] if not reach.origins), None)
        word = word or primitive_names.primitive_name(equation, factor)
        if kind == "max" and any(reach.form == "variance" for reach in inputs):
            word = None  # a norm keeps rounding from making E[x^2] - E[x]^2 negative, and that is no ReLU
        if kind == "div" and factor is None and not inputs[1].origins and inputs[0].origins:
            word = primitive_names.DIVIDED_BY_COUNTS
        since = joined.words | {(self._moment, word)} if word is not None and joined.origins else joined.words
        if word is not None and word.startswith(PADDING) and joined.inside is not None:
            self.flow.pads[joined.inside].append(word)
        if word is not None and len(joined.origins) == 1:
            self.flow.applied[next(iter(joined.origins))].add((self._moment, word))
        elements = self.rules.results(equation, [reach.elements for reach in inputs])
        self._note_doing(joined.inside, equation, inputs)
        form = _find_form(equation, inputs)
        return [Reach(joined.origins, since, joined.inside, each, form=form, sources=sources) for each in elements]

    def _pass_mark(self, mark: str, reach: Reach) -> Reach:
        if mark.startswith(ENTERED):
            number = int(mark.removeprefix(ENTERED))
            if self._loops:
                self.flow.looped.add(number)
            self.flow.entered[number] = _union([self.flow.entered.get(number, Reach()), reach])
            self.flow.inputs.setdefault(number, reach.elements.order)
            return Reach(reach.origins, reach.words, inside=number, elements=reach.elements)
        if mark.startswith(LEFT):
            number = int(mark.removeprefix(LEFT))
            self.flow.outputs.setdefault(number, reach.elements.order)
            self.flow.left.setdefault(number, reach)
            return Reach(frozenset({number}), elements=reach.elements)
        return reach

    def _note_doing(self, number: int | None, equation: Any, inputs: list[Reach]) -> None:
        """Note reductions, roots, and parameters that multiply or are added: what a norm is made of."""
        name = equation.primitive.name
        constant = next((each for each in map(_read_constant, equation.invars) if each is not None), None)
        if name in ("add", "add_any") and constant is not None:
            self._added[equation.outvars[0]] = constant
        for place, reach in enumerate(inputs):
            parameter, use = reach.elements.parameter, _USES.get(name)
            if parameter is None or use is None or (name in ("div", "sub") and place == 0):
                continue
            if constant is not None and name == "mul":
                self.flow.factors.setdefault(parameter, constant)
            elif any(other.origins or other.inside is not None for other in inputs):
                self.flow.uses.setdefault(parameter, use)
        if number is None:
            return
        order = inputs[0].elements.order
        if name in order_rules.REDUCTIONS and order is not None:
            neutral = order.axes()
            kinds = {axis: "N" if place == 0 else "S" for place, axis in enumerate(neutral)} | {neutral[-1]: "C"}
            self.flow.reductions[number].append(frozenset(kinds[axis] for axis in equation.params["axes"]))
        if name in ("sqrt", "rsqrt"):
            source = equation.invars[0]
            self.flow.roots[number].append(None if hasattr(source, "val") else self._added.get(source))

    def _look_inside(self, number: int | None, equation: Any) -> None:
        if number is None:
            return
        self.flow.inside.setdefault(number, set()).add(equation.primitive.name)
        if equation.primitive.name == "conv_general_dilated":
            shape, axes = equation.invars[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[2:]
            parameters = dict(equation.params) | {"kernel": [shape[axis] for axis in axes]}
            self.flow.convolutions.setdefault(number, []).append(parameters)


def _find_form(equation: Any, inputs: list[Reach]) -> str:
    name, variables = equation.primitive.name, equation.invars
    is_power = name == "square" or (name == "integer_pow" and equation.params["y"] == 2)
    if is_power or (name == "mul" and variables[0] is variables[1]):
        return "square"
    return "variance" if name == "sub" and inputs[1].form == "square" else ""


def _compute_constant(equation: Any, inputs: list[Reach]) -> float | None:
    """Return the result of arithmetic with constant numbers, None for anything else."""
    values = [reach.constant for reach in inputs]
    if equation.primitive.name not in _ARITHMETIC or equation.outvars[0].aval.shape or None in values:
        return None
    return float(equation.primitive.bind(*(jnp.float32(value) for value in values), **equation.params))


def _read_constant(variable: Any) -> float | None:
    value: Any = getattr(variable, "val", None)  # only a literal has one
    if value is None or getattr(value, "ndim", 0) != 0:
        return None
    return float(value) if isinstance(value, (int, float)) or hasattr(value, "item") else None


def _union(reaches: Collection[Reach]) -> Reach:
    return Reach(
        frozenset[int]().union(*(reach.origins for reach in reaches)),
        frozenset[tuple[int, str]]().union(*(reach.words for reach in reaches)),
        next((reach.inside for reach in reaches if reach.inside is not None), None),
    )


def _inner(equation: Any) -> Any:
    """Return the program that an equation calls, if it calls one."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in equation.params:
            return getattr(equation.params[key], "jaxpr", equation.params[key])
    return None


@cache
def _written_out() -> dict[str, tuple[str, ...]]:
    """Return the primitives of each function that this version of jax writes out without a name."""
    written = {
        "gelu(tanh)": lambda x: jax.nn.gelu(x, approximate=True),
        "gelu(exact)": lambda x: jax.nn.gelu(x, approximate=False),
        "softmax": jax.nn.softmax,
        "mean": lambda x: jnp.mean(x, axis=-1),
    }
    image = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    words = {name: follow(jax.make_jaxpr(function)(image)).logits.words for name, function in written.items()}
    return {
        name: tuple(primitive_names.without_factor(word) for _, word in sorted(numbered))
        for name, numbered in words.items()
    }
