"""The gates: pure functions over two contenders' recorded arrays (`compare.recording` says which).

An error is |a - b| / |b| in the Euclidean norm over one tensor, b being the baseline's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compare.interface import Array, Arrays

SEMANTIC_LIMIT = 1e-10
SCALING_LIMIT = 1e6

ROUNDOFF64, ROUNDOFF32 = 2.0**-53, 2.0**-24


@dataclass(frozen=True)
class Gate:
    """One gate's outcome: `value` (None where it could not be computed) against `limit`, and the worst tensor."""

    name: str
    value: float | None
    limit: float
    passed: bool
    worst_tensor: str | None


@dataclass(frozen=True)
class Certificate:
    """All gates of one pair; `first_mismatch` says which tensor failed first in execution order, and how."""

    gates: tuple[Gate, ...]
    first_mismatch: str | None

    @property
    def passed(self) -> bool:
        """Whether every gate passed."""
        return all(gate.passed for gate in self.gates)


class Incomparable(Exception):
    """Two records that no arithmetic can compare: a tensor missing, of another shape or dtype, or not finite."""


def certify(baseline: dict[str, Arrays], contender: dict[str, Arrays]) -> Certificate:
    """Judge two contenders by their records in `float64` and `float32` (precision to arrays by name)."""
    try:
        e64 = errors(baseline["float64"], contender["float64"])
        e32 = errors(baseline["float32"], contender["float32"])
    except Incomparable as problem:
        failed = (
            Gate("semantic", None, SEMANTIC_LIMIT, False, None),
            Gate("scaling", None, SCALING_LIMIT, False, None),
        )
        return Certificate(failed, str(problem))
    ratios = scaling_ratios(e32, e64, baseline["float64"])
    semantic, scaling = _semantic(e64), _scaling(ratios)
    first = next((name for name in in_execution_order(list(e64)) if _fails(name, e64, ratios)), None)
    return Certificate((semantic, scaling), first and f"{first} (e64 {e64[first]:.1e}, e32/e64 {ratios[first]:.1e})")


def errors(baseline: Arrays, contender: Arrays) -> dict[str, float]:
    """Return each tensor's error, initial values excluded (they must be equal) and buffers as change from the start.

    Raises:
        Incomparable: naming the tensor, before any arithmetic on it.
    """
    check_comparable(baseline, contender)
    found: dict[str, float] = {}
    for name, reference in baseline.items():
        value = contender[name]
        step, _, rest = name.partition("/")
        kind, _, leaf = rest.partition("/")
        if step == "initial":
            if not np.array_equal(value, reference):
                raise Incomparable(f"{name} differs although both start from the same bits")
            continue
        if kind == "buffer":
            reference = reference - baseline[f"initial/{leaf}"]
            value = value - contender[f"initial/{leaf}"]
        found[name] = relative_error(value, reference)
    return found


def check_comparable(baseline: Arrays, contender: Arrays) -> None:
    """Check names, shapes, dtypes and finiteness in execution order.

    Raises:
        Incomparable: naming the first tensor that is wrong and how.
    """
    for name in in_execution_order([*baseline, *(name for name in contender if name not in baseline)]):
        for side, arrays in (("baseline", baseline), ("contender", contender)):
            if name not in arrays:
                raise Incomparable(f"{name} is missing in the {side}")
        a, b = baseline[name], contender[name]
        if a.shape != b.shape:
            raise Incomparable(f"{name} has shape {list(a.shape)} in the baseline, {list(b.shape)} in the contender")
        if a.dtype != b.dtype:
            raise Incomparable(f"{name} is {a.dtype} in the baseline, {b.dtype} in the contender")
        for side, array in (("baseline", a), ("contender", b)):
            if not np.isfinite(array).all():
                raise Incomparable(f"{name} is not finite in the {side}")


def relative_error(value: Array, reference: Array) -> float:
    """Return |value - reference| / |reference|, 0 where both are zero, infinity where only the reference is."""
    wide = reference.astype(np.float64)
    difference = float(np.linalg.norm(value.astype(np.float64) - wide))
    return difference and difference / max(float(np.linalg.norm(wide)), np.finfo(np.float64).tiny)


def scaling_ratios(e32: dict[str, float], e64: dict[str, float], reference: Arrays) -> dict[str, float]:
    """Return e32 / e64 by tensor, neither taken below what storage can resolve (`reference` is a float64 record).

    Bits that happen to agree prove nothing. A change of a stored tensor is resolved to |tensor| / |change| units of
    roundoff only, because the tensor is rounded after the change is added.
    """
    ratios: dict[str, float] = {}
    for name in e64:
        coarseness = _coarseness(name, reference)
        ratios[name] = max(e32[name], ROUNDOFF32 * coarseness) / max(e64[name], ROUNDOFF64 * coarseness)
    return ratios


def _coarseness(name: str, record: Arrays) -> float:
    initial = record.get(f"initial/{name.split('/', 2 if name.startswith('step') else 1)[-1]}")
    if initial is None or "/gradient/" in name:
        return 1.0
    change = record[name] - initial if "/buffer/" in name else record[name]
    size = float(np.linalg.norm(change))
    return max(1.0, float(np.linalg.norm(initial)) / size) if size else 1.0


def in_execution_order(names: Sequence[str]) -> list[str]:
    """Return names as they come to be: by step, forward before backward, gradients from the last layer back."""
    stages = ("activation", "logits", "loss", "gradient", "buffer", "update")

    def key(item: tuple[int, str]) -> tuple[int, int, int]:
        index, name = item
        step, _, rest = name.partition("/")
        kind = rest.partition("/")[0]
        if not step.startswith("step"):
            return ({"initial": 0, "evaluation": 1_000_000}.get(step, 2_000_000), 0, index)
        return (int(step[4:]), stages.index(kind), -index if kind == "gradient" else index)

    return [name for _, name in sorted(enumerate(names), key=key)]


def _semantic(e64: dict[str, float]) -> Gate:
    worst = max(e64, key=lambda name: e64[name])
    return Gate("semantic", _json(e64[worst]), SEMANTIC_LIMIT, e64[worst] <= SEMANTIC_LIMIT, worst)


def _scaling(ratios: dict[str, float]) -> Gate:
    worst = min(ratios, key=lambda name: ratios[name])
    return Gate("scaling", _json(ratios[worst]), SCALING_LIMIT, ratios[worst] >= SCALING_LIMIT, worst)


def _fails(name: str, e64: dict[str, float], ratios: dict[str, float]) -> bool:
    return not (e64[name] <= SEMANTIC_LIMIT and ratios[name] >= SCALING_LIMIT)


def _json(value: float) -> float | None:
    return value if np.isfinite(value) else None
