"""Record values inside of lifted transforms: `nn.remat`, `nn.jit`, `jax.checkpoint` and a bound axis.

A value of an inner trace cannot leave it. So the model is traced with marks on the values
(`jax.ad_checkpoint.checkpoint_name`, which computes nothing). Its program then runs once more, and every call that
contains a mark runs equation by equation.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

_RECORDED = "samestep recorded "


def mark(value: jax.Array, name: str) -> jax.Array:
    """Return the value, marked to be recorded under this name."""
    return checkpoint_name(value, f"{_RECORDED}{name}")


def run(function: Callable[..., Any], *arguments: Any) -> tuple[Any, OrderedDict[str, jax.Array]]:
    """Return what a function returns, and every value that it has marked, by name in order of execution.

    Values inside of loops are left out: they have another value in every turn.
    """
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    values: OrderedDict[str, jax.Array] = OrderedDict()  # a pytree that keeps its order, unlike a dict
    results = _evaluate(program.jaxpr, program.consts, jax.tree.leaves(arguments), values)
    return jax.tree.unflatten(jax.tree.structure(shapes), results), values


def _evaluate(
    jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any], recorded: dict[str, jax.Array]
) -> list[Any]:
    known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        inner = _find_marked_call(equation)
        if equation.primitive.name == "name" and equation.params["name"].startswith(_RECORDED):
            recorded[equation.params["name"].removeprefix(_RECORDED)] = inputs[0]
            results = inputs
        elif inner is not None:
            results = _evaluate(inner.jaxpr, inner.consts, inputs, recorded)
        else:
            results = _run_alone(jaxpr, equation, inputs)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run_alone(jaxpr: Jaxpr, equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    values = {atom: value for atom, value in zip(equation.invars, inputs, strict=True) if not isinstance(atom, Literal)}
    alone = jaxpr.replace(eqns=[equation], constvars=[], invars=list(values), outvars=list(equation.outvars))
    return jaxpr_as_fun(ClosedJaxpr(alone, []))(*values.values())


def _find_marked_call(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the program that an equation calls once, if it contains a mark."""
    for key in ("jaxpr", "call_jaxpr"):
        inner = equation.params.get(key)
        if inner is None:
            continue
        closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, [])
        shapes = [[getattr(atom.aval, "shape", None) for atom in each.invars] for each in (equation, closed.jaxpr)]
        if (
            shapes[0] == shapes[1]
            and equation.primitive.name not in ("scan", "while")
            and _RECORDED in str(closed.jaxpr)
        ):
            return closed
    return None
