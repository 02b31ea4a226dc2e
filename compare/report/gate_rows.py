"""The certificate as rows of text: each gate with its meaning, and with its tensors on request."""

from collections.abc import Mapping
from typing import Any

from compare.agreement.gates import RULES
from compare.report.sentences import DASH, gate_value

MEANINGS = {name: rule.question for name, rule in RULES.items()}
GATE_COLUMNS = ("gate", "value", "limit", "", "worst tensor")
TENSOR_COLUMNS = ("tensor", "e64", "e32", "e32/e64", "noise", "baseline", "contender")

TENSOR_MEANINGS = {name: rule.question for name, rule in RULES.items()}


def gate_rows(pair: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Return a row of `GATE_COLUMNS` for each gate of a pair, in the order in which they were judged."""
    return [
        (
            gate["name"],
            gate_value(gate, 2),
            f"{'>=' if RULES[gate['name']].is_minimum else '<='} {gate['limit']:.3g}",
            "pass" if gate["passed"] else "FAIL",
            gate["worst_tensor"] or DASH,
        )
        for gate in pair["gates"]
    ]


def tensor_rows(pair: Mapping[str, Any]) -> list[list[str]]:
    """Return a row of `TENSOR_COLUMNS` for each tensor of a pair, in execution order; none where none was recorded."""
    keys = ("e64", "e32", "scaling", "noise", "baseline_error", "contender_error")
    return [[each["name"], *(_figure(each[key]) for key in keys)] for each in pair.get("tensors", ())]


def _figure(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}"
