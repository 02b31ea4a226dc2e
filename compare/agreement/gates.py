"""The gates: pure functions over two contenders' recorded arrays (`compare.worker.recording` says which)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compare.agreement.limits import SCALING_LIMIT, SEMANTIC_LIMIT, UPDATE_LIMIT, UPDATE_NOISE
from compare.agreement.measures import (
    ROUNDOFF32,
    ROUNDOFF64,
    Updates,
    apart,
    changes,
    coarseness,
    in_execution_order,
    is_finite,
    relative_error,
    size,
)
from compare.agreement.threads import by_name
from compare.base.interface import Arrays, is_buffer


@dataclass(frozen=True)
class Gate:
    """One gate's outcome: `value` (None where it could not be computed) against `limit`, and the worst tensor."""

    name: str
    value: float | None
    limit: float
    passed: bool
    worst_tensor: str | None


class Incomparable(Exception):
    """Two records that no arithmetic can compare: a `tensor` missing, of another shape or dtype, or not finite."""

    def __init__(self, tensor: str, what: str) -> None:
        super().__init__(f"{tensor} {what}")
        self.tensor = tensor


def errors(baseline: Arrays, contender: Arrays) -> dict[str, float]:
    """Return each tensor's error, initial values excluded (they must be equal) and buffers as change from the start.

    Raises:
        Incomparable: naming the tensor, before any arithmetic on it.
    """
    check_comparable(baseline, contender)
    for name, reference in baseline.items():
        if name.startswith("initial/") and not np.array_equal(contender[name], reference):
            raise Incomparable(name, "differs although both start from the same bits")
    values, references = changes(contender), changes(baseline)
    return by_name(
        references,
        lambda name: relative_error(values[name], references[name], size(name, references[name], baseline)),
        baseline,
    )


def check_comparable(baseline: Arrays, contender: Arrays) -> None:
    """Check names, shapes, dtypes and finiteness in execution order.

    Raises:
        Incomparable: naming the first tensor that is wrong and how.
    """
    sides = {"baseline": baseline, "contender": contender}

    def check(name: str) -> None:
        for side, arrays in sides.items():
            if name not in arrays:
                raise Incomparable(name, f"is missing in the {side}")
        a, b = baseline[name], contender[name]
        if a.shape != b.shape:
            raise Incomparable(name, f"has shape {list(a.shape)} in the baseline, {list(b.shape)} in the contender")
        if a.dtype != b.dtype:
            raise Incomparable(name, f"is {a.dtype} in the baseline, {b.dtype} in the contender")
        for side, arrays in sides.items():
            if not is_finite(arrays[name]):
                raise Incomparable(name, f"is not finite in the {side}")

    every = in_execution_order([*baseline, *(name for name in contender if name not in baseline)])
    by_name(every, check, baseline)


def scaling_ratios(
    e32: dict[str, float], e64: dict[str, float], baseline: Mapping[str, Arrays], contender: Mapping[str, Arrays]
) -> dict[str, float]:
    """Return e32 / e64 by tensor, of sides whose records these are by precision.

    Neither error is taken below what storage can resolve: bits that happen to agree prove nothing. A change of a stored
    tensor is resolved to |tensor| / |change| units of roundoff only, because the tensor is rounded after the change is
    added. Nor is e32 taken below what float32 costs either side by itself: two programs of one framework may round
    alike in float32, and not in float64, for which it has other kernels.
    """

    def ratio(name: str) -> float:
        if math.isinf(e64[name]):  # the reference is zero in float64, and then in float32 as well
            return 1.0
        least = coarseness(name, baseline["float64"])
        return max(e32[name], ROUNDOFF32 * least) / max(e64[name], ROUNDOFF64 * least)

    ratios = by_name(e64, ratio, baseline["float64"])
    weak = [name for name in e64 if ratios[name] < SCALING_LIMIT and e64[name] <= SEMANTIC_LIMIT]
    sides = [(changes(side["float64"]), changes(side["float32"])) for side in (baseline, contender)] if weak else []

    def own(name: str) -> float:
        return min(
            relative_error(single[name], exact[name], size(name, exact[name], baseline["float64"]))
            for exact, single in sides
        )

    of_one_side = by_name(weak, own, baseline["float64"])
    return ratios | {name: max(ratios[name], error / e64[name]) for name, error in of_one_side.items()}


def semantic(e64: dict[str, float]) -> Gate:
    """Gate 1: in float64 no tensor's error exceeds 1e-10."""
    worst = max(e64, key=lambda name: e64[name])
    return Gate("semantic", _json(e64[worst]), SEMANTIC_LIMIT, e64[worst] <= SEMANTIC_LIMIT, worst)


def scaling(ratios: dict[str, float]) -> Gate:
    """Gate 2: from float32 to float64 every error falls by 1e6 (rounding predicts 5e8, another meaning about 1)."""
    worst = min(ratios, key=lambda name: ratios[name])
    return Gate("scaling", _json(ratios[worst]), SCALING_LIMIT, ratios[worst] >= SCALING_LIMIT, worst)


def determinism(once: Arrays, again: Arrays) -> Gate:
    """Two runs of one side must be equal bit for bit; the value is the number of tensors that are not."""
    unequal = [name for name in in_execution_order(list(once)) if not np.array_equal(once[name], again[name])]
    return Gate("determinism", float(len(unequal)), 0.0, not unequal, unequal[0] if unequal else None)


def update(baseline: Updates, contender: Updates) -> Gate:
    """At the batch that is timed, both sides' updates are one: of one size and direction, within a factor of two.

    Those of buffers are within a hundredth of it. A gate that can ask no parameter fails.
    """
    figures, names = apart(baseline.changes, contender.changes), asked(baseline, contender)
    if all(map(is_buffer, names)):
        return Gate("update", None, UPDATE_LIMIT, False, None)
    worst = max(names, key=lambda name: figures[name])
    return Gate("update", _json(figures[worst]), UPDATE_LIMIT, figures[worst] <= UPDATE_LIMIT, worst)


def asked(baseline: Updates, contender: Updates) -> list[str]:
    """Return every name of which moving the initial weights by one ulp makes no other update on one side at least.

    What is more is rounding, of what is computed or of what is stored.
    """
    ours, theirs = baseline.noise, contender.noise
    names = dict.fromkeys((*ours, *theirs))
    return [name for name in names if min(ours.get(name, math.inf), theirs.get(name, math.inf)) <= UPDATE_NOISE]


def fails(e64: float, ratio: float) -> bool:
    """Whether one tensor fails gate 1 or gate 2."""
    return not (e64 <= SEMANTIC_LIMIT and ratio >= SCALING_LIMIT)


def _json(value: float) -> float | None:
    return value if np.isfinite(value) else None
