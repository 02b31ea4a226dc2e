"""Recognise a layer of the user's own class by what it does in the traced program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compare.base.trace import NORMS, Variable
from jaxbackend.only.program_flow import Flow


@dataclass(frozen=True)
class Norm:
    """A norm of the user's own: its role, its variables and its settings."""

    role: str
    variables: tuple[Variable, ...]
    settings: dict[str, Any]


def find_norm(flow: Flow, call: int, variables: Sequence[tuple[Variable, int]], channels: int) -> Norm | None:
    """Return the norm that a call computes, or None if it computes none.

    Args:
        flow: the flow of the model's program.
        call: the number of the call.
        variables: each with its number in the program.
        channels: the length of the last axis of the call's input.
    """
    kinds, roots = set(flow.reductions.get(call, ())), flow.roots.get(call, [])
    if len(kinds) != 1 or not roots or not variables:
        return None
    axes = next(iter(kinds))
    named = [_name(flow, variable, number) for variable, number in variables]
    roles = [variable.role for variable in named]
    if axes not in NORMS or len(set(roles)) < len(roles) or not set(roles) <= {"scale", "bias", "mean", "var"}:
        return None
    role = NORMS[axes]
    settings: dict[str, Any] = {} if roots[0] is None else {"epsilon": float(f"{roots[0]:.7g}")}
    if axes == frozenset("S"):
        settings["groups"] = channels
    if role == "batch-norm":
        settings["statistics"] = "batch"
        factors = [
            flow.factors[number]
            for variable, number in variables
            if not variable.is_parameter and number in flow.factors
        ]
        if factors:
            settings |= {"momentum": round(1 - float(f"{factors[0]:.7g}"), 12), "running_variance": "biased"}
    elif not all(variable.is_parameter for variable in named):
        return None
    return Norm(role, tuple(named), settings)


def _name(flow: Flow, variable: Variable, number: int) -> Variable:
    shape = tuple(size for size in variable.shape if size != 1)
    if variable.is_parameter:
        role = flow.uses.get(number, "free")
    else:  # a running statistic: nothing in a training pass tells one from the other
        leaf = variable.own.rpartition("/")[2].lower()
        role = "var" if "var" in leaf else "mean" if "mean" in leaf else "free"
    return Variable(variable.own, role, shape, variable.is_parameter, variable.orders)
