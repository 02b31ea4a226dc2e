"""A step as many small programs, where equal pieces share one program: the knob `pieces`.

A deep network repeats itself, and compiling it as a whole takes time for every layer. Here the step is traced as for
`jax.jit`. Then it is cut before every convolution and matrix product, and between independent operations. A piece is a
part of a layer's forward or backward pass, or the update of one parameter. Pieces with the same operations on the same
shapes are compiled once.
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

from jaxbackend.only import cpu_convolutions

PRODUCTS = ("conv_general_dilated", "dot_general")
Atom = Var | Literal
# Functions for differentiation differ from call to call. In a traced step, differentiation is done.
_DERIVATIVES = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd")


class Pieces:
    """A pure function of arrays, traced once for each set of shapes and run piece by piece."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._traced: dict[Hashable, _Traced] = {}

    def __len__(self) -> int:
        """Return the number of compiled programs."""
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
    """One call of a piece: its inputs and outputs, and the variables that no later call needs."""

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
            results = call.program(*(values[variable] for variable in call.inputs))
            values.update(zip(call.outputs, results, strict=True))
            for variable in call.dropped:
                del values[variable]
        outputs = (atom.val if isinstance(atom, Literal) else values[atom] for atom in jaxpr.outvars)
        return jax.tree.unflatten(self.structure, outputs)


class _Piece:
    """Equations of a program as a program of their own. Pieces that differ only in variables' names are equal."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.jaxpr = jaxpr
        self._key = _key(jaxpr)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Piece) and self._key == other._key


_COMPILED: dict[_Piece, Callable[..., Any]] = {}


# A piece is too small to gain from XLA's newer code generator for CPUs, from code that is split for threads, or from
# LLVM's slower passes. Without these, the same programs compile in less than half the time and run as fast.
_CPU_OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_backend_optimization_level": 1,
}


@cache
def _options() -> dict[str, Any] | None:
    """Return the compiler options of pieces, None if XLA does not compile for a CPU or does not know these options."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda: jnp.zeros(())).lower().compile(compiler_options=_CPU_OPTIONS)
    except jax.errors.JaxRuntimeError:
        return None
    return _CPU_OPTIONS


def _compile(pieces: Iterable[_Piece]) -> None:
    """Compile new pieces, several at a time: XLA does not hold Python's lock."""
    options = _options()
    new = [piece for piece in dict.fromkeys(pieces) if piece not in _COMPILED]
    programs = [jax.jit(_make_function(piece.jaxpr)) for piece in new]
    lowered = [program.lower(*map(_shape, piece.jaxpr.invars)) for program, piece in zip(programs, new, strict=True)]
    with ThreadPoolExecutor() as threads:
        _COMPILED.update(zip(new, threads.map(lambda program: program.compile(options), lowered), strict=True))


def _make_function(jaxpr: Jaxpr) -> Callable[..., Any]:
    """Return a piece as a function. Its first equation is its only product."""
    first, *others = jaxpr.eqns
    if not cpu_convolutions.is_slow(first):
        return jaxpr_as_fun(ClosedJaxpr(jaxpr, []))
    rest = jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(eqns=others, invars=[*first.outvars, *jaxpr.invars]), []))

    def run(*inputs: Any) -> Any:
        values: dict[Atom, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        return rest(cpu_convolutions.convolve(first, *(values[atom] for atom in first.invars)), *inputs)

    return run


def _shape(variable: Any) -> jax.ShapeDtypeStruct:
    kind = variable.aval
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)


def _calls(jaxpr: Jaxpr) -> Iterator[_Call]:
    """Yield the calls of a program's pieces in order."""
    pieces = list(_pieces(jaxpr))
    _compile(pieces)
    last = {variable: number for number, piece in enumerate(pieces) for variable in piece.jaxpr.invars}
    results = set(_variables(jaxpr.outvars))
    for number, piece in enumerate(pieces):
        inputs, outputs = piece.jaxpr.invars, piece.jaxpr.outvars
        dropped = [variable for variable in inputs if last[variable] == number and variable not in results]
        yield _Call(_COMPILED[piece], inputs, outputs, dropped)


def _pieces(jaxpr: Jaxpr) -> list[_Piece]:
    """Return a program's pieces in order, without those whose results are not needed."""
    pieces: list[_Piece] = []
    needed = set(_variables(jaxpr.outvars))
    for equations in reversed([part for run in _runs(jaxpr.eqns) for part in _parts(run)]):
        written = [variable for equation in equations for variable in equation.outvars]
        outputs = [variable for variable in written if variable in needed]
        if outputs:
            read = _variables(atom for equation in equations for atom in equation.invars)
            inputs = [variable for variable in read if variable not in set(written)]
            needed.update(inputs)
            pieces.append(_Piece(jaxpr.replace(eqns=equations, constvars=[], invars=inputs, outvars=outputs)))
    return pieces[::-1]


def _runs(equations: Sequence[JaxprEqn]) -> list[list[JaxprEqn]]:
    """Cut a program before every product."""
    runs: list[list[JaxprEqn]] = [[]]
    for equation in equations:
        if equation.primitive.name in PRODUCTS:
            runs.append([])
        runs[-1].append(equation)
    return runs


def _parts(run: Sequence[JaxprEqn]) -> list[list[JaxprEqn]]:
    """Return the independent parts of a run, each in order."""
    parts: dict[int, list[int]] = {}
    maker: dict[Var, int] = {}
    for place, equation in enumerate(run):
        before = {maker[variable] for variable in _variables(equation.invars) if variable in maker}
        parts[place] = [*(earlier for part in before for earlier in parts.pop(part)), place]
        maker |= {variable: place for inside in parts[place] for variable in run[inside].outvars}
    return [[run[place] for place in sorted(part)] for part in parts.values()]


def _variables(atoms: Iterable[Atom]) -> list[Var]:
    """Return the variables among atoms, each once."""
    return list(dict.fromkeys(atom for atom in atoms if not isinstance(atom, Literal)))


def _key(jaxpr: Jaxpr) -> Hashable:
    """Return a key that is equal for programs with the same operations on arrays of the same shapes."""
    numbers = {variable: number for number, variable in enumerate([*jaxpr.constvars, *jaxpr.invars])}

    def atom_key(atom: Atom) -> Hashable:
        # Bytes tell 0 from -0, which are equal as numbers.
        return (np.asarray(atom.val).tobytes(), atom.aval) if isinstance(atom, Literal) else numbers[atom]

    equations: list[Hashable] = []
    for equation in jaxpr.eqns:
        inputs = tuple(map(atom_key, equation.invars))
        numbers |= {variable: len(numbers) + place for place, variable in enumerate(equation.outvars)}
        params = (
            (name, _parameter_key(value)) for name, value in sorted(equation.params.items()) if name not in _DERIVATIVES
        )
        equations.append((equation.primitive, tuple(params), inputs))
    return tuple(variable.aval for variable in jaxpr.invars), tuple(equations), tuple(map(atom_key, jaxpr.outvars))


def _parameter_key(value: Any) -> Hashable:
    """Return an equation's parameter as part of a key. A value without a hash is equal only to itself."""
    if isinstance(value, ClosedJaxpr):
        return _key(value.jaxpr), tuple(map(id, value.consts))
    if isinstance(value, Jaxpr):
        return _key(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_parameter_key, value))
    return value if isinstance(value, Hashable) else id(value)
