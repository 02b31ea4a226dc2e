"""Settings of a user's flax model that belong to the run: the dtype of its layers, and training or evaluation."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen, nnx

from compare.base.trace import PRODUCTS
from jaxbackend import roles
from jaxbackend.precision import Policy

_TRAINING = {"train", "training", "istrain", "istraining"}
_EVALUATION = {"eval", "evaluation", "inference", "infer", "deterministic", "test", "testing"}
_WHOLE_NAMES = {"use_running_average": False, "use_running_stats": False}


def choose_dtype(module: Any, policy: Policy) -> Any:
    """Return the dtype that a layer computes in if its own is another one, or None to leave its own.

    Products get the compute dtype. So does a batch norm that names none, because torch's autocast leaves the result of
    one in that dtype. In a precision with one dtype, every layer that names a dtype gets that one.
    """
    if not hasattr(module, "dtype"):
        return None
    own, wanted, role = module.dtype, policy.compute_dtype, roles.role(module)
    is_product = role in PRODUCTS or isinstance(module, (linen.DenseGeneral, nnx.LinearGeneral))
    if own is None:
        return wanted if (is_product or role == "batch-norm") and wanted != policy.parameter_dtype else None
    is_fixed = is_product or wanted == policy.parameter_dtype
    return wanted if is_fixed and _is_real(own) and jnp.dtype(own) != jnp.dtype(wanted) else None


def set_dtypes(module: linen.Module, policy: Policy, written: Mapping[str, Any]) -> linen.Module:
    """Return a linen model whose own dtype fields have the run's dtypes, unless `written` gives them."""
    wanted = {"dtype": policy.compute_dtype, "param_dtype": policy.parameter_dtype}
    named = {field.name for field in dataclasses.fields(module)}
    changes = {
        name: dtype
        for name, dtype in wanted.items()
        if name in named and name not in written and _is_real(getattr(module, name))
    }
    return module.clone(**changes) if changes else module


def find_flags(model: Any, training: bool) -> dict[str, bool]:
    """Return the arguments that tell a model's call whether it is in training."""
    parameters = inspect.signature(type(model).__call__).parameters.values()
    flags = {each.name: _flag_value(each.name, training) for each in parameters if _may_be_flag(each.default)}
    return {name: value for name, value in flags.items() if value is not None}


def find_fields(model: Any, training: bool) -> dict[str, bool]:
    """Return the fields that tell a model whether it is in training."""
    fields = {name: _flag_value(name, training) for name, value in _list_fields(model) if isinstance(value, bool)}
    return {name: value for name, value in fields.items() if value is not None}


def _list_fields(model: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(model, linen.Module):
        yield from ((field.name, getattr(model, field.name)) for field in dataclasses.fields(model))
    else:
        yield from list(vars(model).items())


def _flag_value(name: str, training: bool) -> bool | None:
    """Return the value of a flag in training or evaluation. Return None for a name that is no flag."""
    words = set(name.lower().split("_")) - {"is", "mode"}
    if name in _WHOLE_NAMES or (words and words <= _EVALUATION):
        return not training
    return training if words and words <= _TRAINING else None


def _may_be_flag(default: Any) -> bool:
    return default in (inspect.Parameter.empty, None) or isinstance(default, bool)


def _is_real(dtype: Any) -> bool:
    try:
        return bool(jnp.issubdtype(jnp.dtype(dtype), jnp.floating))
    except TypeError:
        return False
