"""The certificate as rows of text: each gate with its meaning, and each tensor on request."""

from compare.agreement.gates import RULES
from compare.report.sentences import DASH, format_gate_value
from compare.results.model import Pair

MEANINGS = {name: rule.question for name, rule in RULES.items()}
GATE_COLUMNS = ("gate", "value", "limit", "", "worst tensor")
TENSOR_COLUMNS = ("tensor", "e64", "e32", "e32/e64", "noise", "baseline", "contender")

TENSOR_MEANINGS = {
    "e64, e32": "error between the sides, |a - b| / |b|, in float64 and in float32",
    "e32/e64": "the ratio that the scaling gate judges. Both errors are at least the resolution of storage, and e32 is "
    "at least what float32 costs either side alone, so it may differ from the quotient of the columns",
    "noise": "floor of the precision gate: how much rounding can change at the timed precision",
    "baseline, contender": "each side's own error against its float64, at the timed precision",
    "stepN/..., evaluation/..., delta/...": "step N by itself, a pass over test images, and the total change over "
    "these steps on the timed path",
}


def make_gate_rows(pair: Pair) -> list[tuple[str, str, str, str, str]]:
    """Return a row of `GATE_COLUMNS` for each gate of a pair, in the order of judging."""
    return [
        (
            gate.name,
            format_gate_value(gate, 2),
            f"{'>=' if RULES[gate.name].is_minimum else '<='} {gate.limit:.3g}",
            "pass" if gate.passed else "FAIL",
            gate.worst_tensor or DASH,
        )
        for gate in pair.gates
    ]


def make_tensor_rows(pair: Pair) -> list[tuple[str, ...]]:
    """Return a row of `TENSOR_COLUMNS` for each recorded tensor of a pair, in execution order."""
    return [
        (
            tensor.name,
            *map(
                _figure,
                (
                    tensor.e64,
                    tensor.e32,
                    tensor.scaling,
                    tensor.noise,
                    tensor.baseline_error,
                    tensor.contender_error,
                ),
            ),
        )
        for tensor in pair.tensors
    ]


def _figure(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}"
