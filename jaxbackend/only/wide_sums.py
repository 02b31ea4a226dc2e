"""Sums of bfloat16 or float16 values, taken in float32 and rounded once, as torch and XLA on a GPU take them.

XLA on a CPU rounds after every addition. A sum of equal bfloat16 values then stops growing after 256 of them. The
gradient of a bias is a sum over all pixels and can lose almost all of its value.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from jaxbackend.precision import Policy

_SUMS = ("reduce_sum", "reduce_window_sum")
_LARGEST_EXACT = 2.0
"""Times 1 / eps, the largest whole number up to which a dtype has all whole numbers."""

Keep = Callable[[str, int], None]
"""Takes the scopes and the number of terms of a sum. A sum of as many equal values would stop growing."""


def widen_if_narrow(
    function: Callable[..., Any], policy: Policy, device: Any, keep: Keep = lambda *_: None
) -> Callable[..., Any]:
    """Return a function with its sums in float32 if XLA would round after every addition, else the function itself."""
    is_narrow = device.platform == "cpu" and policy.compute_dtype != policy.parameter_dtype
    return widen(function, keep) if is_narrow else function


def widen(function: Callable[..., Any], keep: Keep = lambda *_: None) -> Callable[..., Any]:
    """Return a function of arrays with its sums in float32. `keep` is called while the function is traced."""

    def wide(*arguments: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        run = jaxpr_as_fun(ClosedJaxpr(_widen(program.jaxpr, "", keep), program.consts))
        return jax.tree.unflatten(jax.tree.structure(shapes), run(*jax.tree.leaves(arguments)))

    return wide


def _widen(jaxpr: Jaxpr, scopes: str, keep: Keep) -> Jaxpr:
    return jaxpr.replace(eqns=[_widen_equation(equation, scopes, keep) for equation in jaxpr.eqns])


def _widen_equation(equation: JaxprEqn, scopes: str, keep: Keep) -> JaxprEqn:
    scopes = f"{scopes}/{equation.source_info.name_stack}"
    if equation.primitive.name not in _SUMS:
        params = {name: _widen_inside(value, scopes, keep) for name, value in equation.params.items()}
        return equation.replace(params=params)
    values: Any = equation.invars[0].aval
    if values.dtype not in (jnp.bfloat16, jnp.float16):
        return equation
    terms = _count_terms(equation.params, values.shape)
    if terms * jnp.finfo(values.dtype).eps > _LARGEST_EXACT:
        keep(scopes, terms)

    def add(values: jax.Array) -> jax.Array:
        return equation.primitive.bind(values.astype(jnp.float32), **equation.params).astype(values.dtype)

    (call,) = jax.make_jaxpr(jax.jit(add))(jax.ShapeDtypeStruct(values.shape, values.dtype)).jaxpr.eqns
    return call.replace(invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info)


def _widen_inside(value: Any, scopes: str, keep: Keep) -> Any:
    """Return an equation's parameter. Programs that the equation calls have their sums in float32."""
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(_widen(value.jaxpr, scopes, keep), value.consts)
    if isinstance(value, Jaxpr):
        return _widen(value, scopes, keep)
    return tuple(_widen_inside(each, scopes, keep) for each in value) if type(value) is tuple else value


def _count_terms(params: Mapping[str, Any], shape: Sequence[int]) -> int:
    if "window_dimensions" in params:
        return math.prod(params["window_dimensions"])
    return math.prod(shape[axis] for axis in params["axes"])
