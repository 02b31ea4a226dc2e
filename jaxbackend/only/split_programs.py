"""A step as many small programs: of pieces that are alike, one is compiled.

A deep network repeats itself, and compiling it as a whole takes time for every layer. Here the step is traced as for
`jax.jit`, and what was traced is cut before every convolution and matrix product, and between what does not depend on
one another. A piece of a layer's forward or backward pass, or of one parameter's update, is then a program of its own,
and so is every other of the same operations on the same shapes.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

PRODUCTS = ("conv_general_dilated", "dot_general")
Atom = Var | Literal
# Functions that only differentiation calls, which is past once a step is traced; they differ from call to call.
_DERIVATIVES = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd")


class Pieces:
    """`step`, a pure function of arrays, traced once for the shapes that it is called with and run piece by piece."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._traced: dict[Hashable, _Traced] = {}

    def __len__(self) -> int:
        """Return how many programs it has become."""
        return len({call.program for traced in self._traced.values() for call in traced.calls})

    def __call__(self, *arguments: Any) -> Any:
        """Return what the step returns."""
        leaves, structure = jax.tree.flatten(arguments)
        key = structure, tuple(map(jax.typeof, leaves))
        if key not in self._traced:
            program, shapes = jax.make_jaxpr(self._step, return_shape=True)(*arguments)
            self._traced[key] = _Traced(tuple(_calls(program.jaxpr)), program, jax.tree.structure(shapes))
        return self._traced[key].run(leaves)


@dataclass(frozen=True)
class _Call:
    """One call of a piece: what it is given and returns, and what no later call needs."""

    program: Callable[..., Any]
    inputs: Sequence[Var]
    outputs: Sequence[Atom]
    dropped: Sequence[Var]


@dataclass(frozen=True)
class _Traced:
    calls: Sequence[_Call]
    program: ClosedJaxpr
    structure: Any

    def run(self, leaves: Sequence[Any]) -> Any:
        jaxpr = self.program.jaxpr
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*self.program.consts, *leaves], strict=True))
        for call in self.calls:
            found = call.program(*(values[each] for each in call.inputs))
            values.update(zip(call.outputs, found, strict=True))
            for each in call.dropped:
                del values[each]
        outputs = (each.val if isinstance(each, Literal) else values[each] for each in jaxpr.outvars)
        return jax.tree.unflatten(self.structure, outputs)


class _Piece:
    """Equations of a program, as a program with inputs and outputs; equal to what differs in the variables' names."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.jaxpr = jaxpr
        self._key = _key(jaxpr)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Piece) and self._key == other._key


_COMPILED: dict[_Piece, Callable[..., Any]] = {}


# A piece is too small to gain from XLA's newer code generator for a CPU, or from its splitting the code for threads;
# without them the same programs compile in half the time, and run as fast.
_CPU_OPTIONS = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}


@cache
def _options() -> dict[str, Any] | None:
    """Return the compiler options of pieces, None where this XLA has none of these names or compiles for no CPU."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda: jnp.zeros(())).lower().compile(compiler_options=_CPU_OPTIONS)
    except jax.errors.JaxRuntimeError:
        return None
    return _CPU_OPTIONS


def _compile(pieces: Iterable[_Piece]) -> None:
    """Compile those that none before was like, several at a time: XLA does not hold Python's lock."""
    options = _options()
    new = [each for each in dict.fromkeys(pieces) if each not in _COMPILED]
    programs = [jax.jit(jaxpr_as_fun(ClosedJaxpr(each.jaxpr, []))) for each in new]
    lowered = [program.lower(*map(_shape, each.jaxpr.invars)) for program, each in zip(programs, new, strict=True)]
    with ThreadPoolExecutor() as threads:
        _COMPILED.update(zip(new, threads.map(lambda each: each.compile(options), lowered), strict=True))


def _shape(variable: Any) -> jax.ShapeDtypeStruct:
    kind = variable.aval
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)


def _calls(jaxpr: Jaxpr) -> Iterator[_Call]:
    """Yield the calls of a program's pieces in order."""
    pieces = list(_pieces(jaxpr))
    _compile(pieces)
    last = {each: number for number, piece in enumerate(pieces) for each in piece.jaxpr.invars}
    kept = set(_variables(jaxpr.outvars))
    for number, piece in enumerate(pieces):
        inputs, outputs = piece.jaxpr.invars, piece.jaxpr.outvars
        dropped = [each for each in inputs if last[each] == number and each not in kept]
        yield _Call(_COMPILED[piece], inputs, outputs, dropped)


def _pieces(jaxpr: Jaxpr) -> list[_Piece]:
    """Return a program's pieces in order; those of which nothing is needed are left out."""
    found: list[_Piece] = []
    needed = set(_variables(jaxpr.outvars))
    for equations in reversed([part for run in _runs(jaxpr.eqns) for part in _parts(run)]):
        made = [each for equation in equations for each in equation.outvars]
        outputs = [each for each in made if each in needed]
        if outputs:
            given = _variables(each for equation in equations for each in equation.invars)
            inputs = [each for each in given if each not in set(made)]
            needed.update(inputs)
            found.append(_Piece(jaxpr.replace(eqns=equations, constvars=[], invars=inputs, outvars=outputs)))
    return found[::-1]


def _runs(equations: Sequence[JaxprEqn]) -> list[list[JaxprEqn]]:
    """Cut before every product."""
    runs: list[list[JaxprEqn]] = [[]]
    for equation in equations:
        if equation.primitive.name in PRODUCTS:
            runs.append([])
        runs[-1].append(equation)
    return runs


def _parts(run: Sequence[JaxprEqn]) -> list[list[JaxprEqn]]:
    """Return the parts of a run that do not depend on one another, each in order."""
    parts: dict[int, list[int]] = {}
    maker: dict[Var, int] = {}
    for place, equation in enumerate(run):
        before = {maker[each] for each in _variables(equation.invars) if each in maker}
        parts[place] = [*(each for part in before for each in parts.pop(part)), place]
        maker |= {each: place for inside in parts[place] for each in run[inside].outvars}
    return [[run[place] for place in sorted(part)] for part in parts.values()]


def _variables(atoms: Iterable[Atom]) -> list[Var]:
    """Return the variables among atoms, each once."""
    return list(dict.fromkeys(each for each in atoms if not isinstance(each, Literal)))


def _key(jaxpr: Jaxpr) -> Hashable:
    """Return what two programs have in common that compute the same of arrays of the same shapes."""
    numbers = {each: number for number, each in enumerate([*jaxpr.constvars, *jaxpr.invars])}

    def atom(each: Atom) -> Hashable:
        # By its bytes: 0 is equal to -0.
        return (np.asarray(each.val).tobytes(), each.aval) if isinstance(each, Literal) else numbers[each]

    equations: list[Hashable] = []
    for equation in jaxpr.eqns:
        inputs = tuple(map(atom, equation.invars))
        numbers |= {each: len(numbers) + place for place, each in enumerate(equation.outvars)}
        params = ((name, _alike(value)) for name, value in sorted(equation.params.items()) if name not in _DERIVATIVES)
        equations.append((equation.primitive, tuple(params), inputs))
    return tuple(each.aval for each in jaxpr.invars), tuple(equations), tuple(map(atom, jaxpr.outvars))


def _alike(value: Any) -> Hashable:
    """Return a parameter of an equation as part of a key; what cannot be compared is like itself only."""
    if isinstance(value, ClosedJaxpr):
        return _key(value.jaxpr), tuple(map(id, value.consts))
    if isinstance(value, Jaxpr):
        return _key(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_alike, value))
    return value if isinstance(value, Hashable) else id(value)
