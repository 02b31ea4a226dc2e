"""Which layers' outputs reach what in a traced program, and by which functions.

A call of a layer stands in the program between two marks, on its inputs and on its output
(`jax.ad_checkpoint.checkpoint_name`, which computes nothing).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

ENTERED, LEFT = "samestep entered ", "samestep left "
"""Marks of a call, followed by its number."""

IMAGES_ORIGIN = -1

_Words = frozenset[tuple[int, str]]

# Functions that jax compiles under a name of their own, and what both frameworks call them.
_FUNCTIONS = {
    name: name
    for name in ("relu", "relu6", "silu", "elu", "selu", "celu", "softplus", "mish", "softmax", "log_softmax")
} | {
    "swish": "silu",
    "leaky_relu": "leaky-relu",
    "hard_silu": "hardswish",
    "hard_sigmoid": "hardsigmoid",
    "hard_tanh": "hardtanh",
    "log_sigmoid": "logsigmoid",
    "log_softmax": "log-softmax",
}
_PRIMITIVES = {
    "add": "add",
    "add_any": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "neg": "negative",
    "integer_pow": "power",
    "square": "power",
    "pow": "power",
    "logistic": "sigmoid",
    "reduce_sum": "sum",
    "reduce_max": "max",
    "rev": "flip",
    "dot_general": "matmul",
}
_SILENT = {"broadcast_in_dim", "convert_element_type", "stop_gradient", "copy", "copy_p", "name", "squeeze"}


@dataclass(frozen=True)
class Reach:
    """What reaches a value: numbers of the nearest calls, the words between (numbered in order), the call that it is
    inside of, and the paths of modules whose own parameters it consists of.
    """

    origins: frozenset[int] = frozenset()
    words: _Words = frozenset()
    inside: int | None = None
    owners: frozenset[str] = frozenset()


@dataclass
class Flow:
    """What `follow` finds, by the number of a call.

    Attributes:
        entered: moment and reach of its inputs; of a module that is no layer but has parameters of its own, of what
            these are first combined with.
        convolutions: what XLA's convolutions inside of it are told, and `kernel`, their height and width.
        inside: the primitives inside of it.
        logits: reach of the result.
    """

    entered: dict[int, tuple[int, Reach]] = field(default_factory=dict)
    convolutions: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    inside: dict[int, set[str]] = field(default_factory=dict)
    logits: Reach = Reach()


def follow(program: Any, reaches: Sequence[Reach], open_calls: Mapping[str, int]) -> Flow:
    """Return the flow of a closed jaxpr whose arguments have these reaches.

    `open_calls` gives, by path, the number of the first call of each module that has parameters of its own beside its
    sub-modules; such a call is seen through, and its parameters act as a layer where they are used.
    """
    walker = _Walker(open_calls)
    walker.flow.logits = walker.walk(program.jaxpr, list(reaches))[0]
    return walker.flow


def spoken(words: _Words) -> tuple[str, ...]:
    """Return the functions between two layers in words that both frameworks share, in order of execution."""
    raw = [word for _, word in sorted(words)]
    found: list[str] = []
    while raw:
        word, length = next(
            ((word, len(run)) for word, run in _runs().items() if tuple(raw[: len(run)]) == run),
            (_PRIMITIVES.get(raw[0], raw[0]), 1),
        )
        if raw[0].startswith("average-pool") and raw[1:2] == ["div"]:
            length = 2
        found.append(word)
        raw = raw[length:]
    return tuple(found)


class _Walker:
    def __init__(self, open_calls: Mapping[str, int]) -> None:
        self._open_calls, self._open_numbers = open_calls, set(open_calls.values())
        self._moment = 0
        self.flow = Flow()

    def walk(self, jaxpr: Any, reaches: list[Reach]) -> list[Reach]:
        known: dict[Any, Reach] = dict(zip(jaxpr.invars, reaches, strict=True))

        def reach(variable: Any) -> Reach:
            return Reach() if hasattr(variable, "val") else known.get(variable, Reach())  # a literal has a value

        for equation in jaxpr.eqns:
            self._moment += 1
            results = self._equation(equation, [reach(each) for each in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [reach(each) for each in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Reach]) -> list[Reach]:
        kind, count = equation.primitive.name, len(equation.outvars)
        if kind == "name":
            return [self._marked(equation.params["name"], inputs[0])]
        function = equation.params.get("name") if kind in ("jit", "pjit") else None
        inner = _inner(equation)
        if function == "gelu" and inner is not None:
            word = "gelu(tanh)" if "tanh" in str(inner) else "gelu(exact)"
            return [self._joined(inputs, word)] * count
        if isinstance(function, str) and function in _FUNCTIONS:
            return [self._joined(inputs, _FUNCTIONS[function])] * count
        if inner is not None and len(inner.invars) == len(inputs) and len(inner.outvars) == count:
            return self.walk(inner, inputs)
        return [self._joined(inputs, None if kind in _SILENT else _word(equation), equation)] * count

    def _marked(self, mark: str, reach: Reach) -> Reach:
        if mark.startswith(ENTERED):
            number = int(mark.removeprefix(ENTERED))
            reach = self._owned([reach])
            if number in self._open_numbers:
                return reach
            moment, others = self.flow.entered.get(number, (self._moment, Reach()))
            self.flow.entered[number] = moment, _union([others, reach])
            return Reach(reach.origins, reach.words, inside=number)
        if mark.startswith(LEFT):
            number = int(mark.removeprefix(LEFT))
            return reach if number in self._open_numbers else Reach(frozenset({number}))
        return reach

    def _joined(self, inputs: list[Reach], word: str | None, equation: Any = None) -> Reach:
        joined = _union(inputs)
        if equation is not None and joined.inside is not None:
            self._look_inside(joined.inside, equation)
        if joined.origins and joined.owners:
            return self._owned(inputs)
        words = joined.words | {(self._moment, word)} if word is not None and joined.origins else joined.words
        return Reach(joined.origins, words, joined.inside, joined.owners)

    def _owned(self, inputs: list[Reach]) -> Reach:
        """Return the reach of what a module's own parameters have been combined with, a layer from here on."""
        joined = _union(inputs)
        if not joined.owners:
            return joined
        numbers = frozenset(self._open_calls[owner] for owner in joined.owners)
        for number in numbers:
            before = Reach(joined.origins - {number}, joined.words)
            self.flow.entered.setdefault(number, (self._moment, before))
        return Reach(numbers, inside=joined.inside)

    def _look_inside(self, number: int, equation: Any) -> None:
        self.flow.inside.setdefault(number, set()).add(equation.primitive.name)
        if equation.primitive.name == "conv_general_dilated":
            axes = equation.params["dimension_numbers"].rhs_spec[2:]
            shape = equation.invars[1].aval.shape
            told = dict(equation.params) | {"kernel": [shape[axis] for axis in axes]}
            self.flow.convolutions.setdefault(number, []).append(told)


def _union(reaches: Collection[Reach]) -> Reach:
    return Reach(
        frozenset[int]().union(*(each.origins for each in reaches)),
        frozenset[tuple[int, str]]().union(*(each.words for each in reaches)),
        next((each.inside for each in reaches if each.inside is not None), None),
        frozenset[str]().union(*(each.owners for each in reaches)),
    )


def _inner(equation: Any) -> Any:
    """Return the program that an equation calls, if it calls one."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in equation.params:
            return getattr(equation.params[key], "jaxpr", equation.params[key])
    return None


def _word(equation: Any) -> str:
    name, told = equation.primitive.name, equation.params
    if name == "max" and any(hasattr(each, "val") and each.val == 0 for each in equation.invars):
        return "relu"
    if name in ("reduce_window_max", "reduce_window_sum"):
        size, stride, padding = (told[key][1:-1] for key in ("window_dimensions", "window_strides", "padding"))
        return (
            f"{'max' if name.endswith('max') else 'average'}-pool({_sides(size)}, {_sides(stride)}, {_pads(padding)})"
        )
    return name


def _sides(lengths: Sequence[int]) -> str:
    return "x".join(map(str, lengths))


def _pads(padding: Sequence[tuple[int, int]]) -> str:
    if all(first == last for first, last in padding):
        return _sides([first for first, _ in padding])
    return str(tuple(map(tuple, padding)))


_known_runs: dict[str, tuple[str, ...]] = {}


def _runs() -> dict[str, tuple[str, ...]]:
    """Return what jax writes out under no name of its own, as this version writes it."""
    if not _known_runs:
        written = {
            "gelu(tanh)": lambda x: jax.nn.gelu(x, approximate=True),
            "gelu(exact)": lambda x: jax.nn.gelu(x, approximate=False),
            "softmax": jax.nn.softmax,
            "mean": lambda x: jnp.mean(x, axis=-1),
        }
        for name, function in written.items():
            program = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((2, 3), jnp.float32))
            words = follow(program, [Reach(frozenset({IMAGES_ORIGIN}))], {}).logits.words
            _known_runs[name] = tuple(word for _, word in sorted(words))
    return _known_runs
