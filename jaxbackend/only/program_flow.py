"""Which layers and functions each value of a user's flax model comes from, read from one traced program.

In the program, marks on its inputs and on its output enclose a call of a layer (`jax.ad_checkpoint.checkpoint_name`,
which computes nothing).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from jaxbackend.only import primitive_names

ENTERED, LEFT = "samestep entered ", "samestep left "
"""Marks of a call; its number follows."""

IMAGES_ORIGIN = -1

_DRAWS = ("random_bits", "random_fold_in", "random_split", "threefry2x32", "rng_bit_generator")


@dataclass(frozen=True)
class Reach:
    """Where a value comes from.

    Attributes:
        origins: the numbers of the nearest calls.
        words: the primitives since these calls, numbered in order.
        inside: the number of the call that computes the value, None outside of calls.
    """

    origins: frozenset[int] = frozenset()
    words: frozenset[tuple[int, str]] = frozenset()
    inside: int | None = None


@dataclass
class Flow:
    """The result of `follow`.

    Attributes:
        entered: the reach of a call's inputs, by the call's number.
        convolutions: the parameters of XLA's convolutions inside a call, and `kernel`, their height and width.
        inside: the primitives inside a call.
        draws: whether the program draws random numbers.
        logits: the reach of the result.
    """

    entered: dict[int, Reach] = field(default_factory=dict)
    convolutions: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    inside: dict[int, set[str]] = field(default_factory=dict)
    draws: bool = False
    logits: Reach = Reach()


def follow(program: Any, inputs: int = 1) -> Flow:
    """Return the flow of a closed jaxpr. Its last `inputs` arguments are the images. Its first result are logits."""
    walker = _Walker()
    reaches = [Reach() for _ in program.jaxpr.invars[inputs:]]
    walker.flow.logits = walker.walk(program.jaxpr, [*reaches, *[Reach(frozenset({IMAGES_ORIGIN}))] * inputs])[0]
    return walker.flow


def name_functions(reach: Reach) -> tuple[str, ...]:
    """Return the functions since the nearest layers, in order of execution, by names that both frameworks share."""
    return primitive_names.shared_names([word for _, word in sorted(reach.words)], _written_out())


class _Walker:
    def __init__(self) -> None:
        self._moment = 0
        self.flow = Flow()

    def walk(self, jaxpr: Any, reaches: list[Reach]) -> list[Reach]:
        """Return the reaches of a program's results."""
        known: dict[Any, Reach] = dict(zip(jaxpr.invars, reaches, strict=True))

        def reach(variable: Any) -> Reach:
            is_literal = hasattr(variable, "val")  # a literal has no hash
            return Reach() if is_literal else known.get(variable, Reach())

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
            return self.walk(inner, inputs)
        joined = _union(inputs)
        self._look_inside(joined.inside, equation)
        word = word or primitive_names.primitive_name(equation)
        since = joined.words | {(self._moment, word)} if word is not None and joined.origins else joined.words
        return [Reach(joined.origins, since, joined.inside)] * count

    def _pass_mark(self, mark: str, reach: Reach) -> Reach:
        if mark.startswith(ENTERED):
            number = int(mark.removeprefix(ENTERED))
            self.flow.entered[number] = _union([self.flow.entered.get(number, Reach()), reach])
            return Reach(reach.origins, reach.words, inside=number)
        return Reach(frozenset({int(mark.removeprefix(LEFT))})) if mark.startswith(LEFT) else reach

    def _look_inside(self, number: int | None, equation: Any) -> None:
        if number is None:
            return
        self.flow.inside.setdefault(number, set()).add(equation.primitive.name)
        if equation.primitive.name == "conv_general_dilated":
            shape, axes = equation.invars[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[2:]
            parameters = dict(equation.params) | {"kernel": [shape[axis] for axis in axes]}
            self.flow.convolutions.setdefault(number, []).append(parameters)


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
    return {name: tuple(word for _, word in sorted(numbered)) for name, numbered in words.items()}
