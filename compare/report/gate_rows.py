"""The certificate as rows of text: each gate with its meaning, and with its tensors on request."""

from collections.abc import Mapping
from typing import Any

from compare.report.sentences import DASH, gate_value

MEANINGS = {
    "semantic": "float64: largest error between the sides",
    "scaling": "float32 error / float64 error, least",
    "precision": "own error against float64 / noise floor",
    "update": "updates at the timed batch: how far apart, as a factor",
    "settings": "effective settings that differ and decide the mathematics",
    "determinism": "tensors that differ when run twice",
    "trajectory": "distance between losses / one-ulp envelope",
    "accuracy": "test accuracy: bound of the difference (TOST)",
}
GATE_COLUMNS = ("gate", "value", "limit", "", "worst tensor")
TENSOR_COLUMNS = ("tensor", "e64", "e32", "e32/e64", "noise", "baseline", "contender")

TENSOR_MEANINGS = {
    "e64, e32": "error between the sides, |a - b| / |b|, in float64 and in float32",
    "e32/e64": "as the scaling gate takes it: neither error lower than storage can resolve, nor e32 lower than float32 "
    "costs either side by itself, so that it may be another number than its neighbours give",
    "noise": "floor of the precision gate: what rounding may do at the timed precision",
    "baseline, contender": "each side's own error against its float64, at the timed precision",
    "stepN/..., evaluation/..., delta/...": "step N by itself, a pass over test images, and what all "
    "these steps change on the path that is timed",
}


def gate_rows(pair: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Return a row of `GATE_COLUMNS` for each gate of a pair, in the order in which they were judged."""
    return [
        (
            gate["name"],
            gate_value(gate, 2),
            f"{'>=' if gate['name'] == 'scaling' else '<='} {gate['limit']:.3g}",
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
