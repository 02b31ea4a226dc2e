"""The gates: pure functions over two contenders' recorded arrays (`compare.worker.recording` says which)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compare.agreement.measures import (
    ROUNDOFF32,
    ROUNDOFF64,
    Updates,
    compute_changes,
    compute_coarseness,
    compute_reference_size,
    compute_relative_error,
    is_finite,
    measure_by_name,
    sort_by_execution,
    update_distances,
)
from compare.base.interface import Arrays, is_buffer


@dataclass(frozen=True)
class Gate:
    """The outcome of one gate: `value` (None if it could not be computed), its limit, and the worst tensor."""

    name: str
    value: float | None
    limit: float
    passed: bool
    worst_tensor: str | None


@dataclass(frozen=True)
class Rule:
    """One gate: its name, the limit of its value, and the question that the value answers.

    Attributes:
        is_minimum: whether the value must reach the limit. Values of all other gates must not exceed it.
        is_in_result: whether a result holds the evidence, so that `verify` can judge the gate again.
    """

    name: str
    limit: float
    question: str
    is_minimum: bool = False
    is_in_result: bool = True

    def judge(self, value: float | None, worst_tensor: str | None, *, limit: float | None = None) -> Gate:
        """Return the outcome for a value. None and numbers that are not finite become None. None fails."""
        limit = self.limit if limit is None else limit
        passed = value is not None and (value >= limit if self.is_minimum else value <= limit)
        return Gate(
            self.name, None if value is None or not math.isfinite(value) else value, limit, passed, worst_tensor
        )

    def strain(self, gate: Gate) -> float:
        """Return how near an outcome is to failing: 1 at the limit, infinity for a failed gate."""
        if not gate.passed or gate.value is None:
            return math.inf
        return gate.limit / gate.value if self.is_minimum else gate.value / (gate.limit or 1.0)


# Every gate, in the order of judging. To add one, add its rule here, and a function that measures its value.
SEMANTIC = Rule("semantic", 1e-10, "largest error between the sides in float64")
SCALING = Rule("scaling", 1e6, "smallest ratio of float32 error to float64 error", is_minimum=True)
PRECISION = Rule("precision", 10.0, "a side's own error against float64, over the noise floor")
UPDATE = Rule("update", 2.0, "ratio between the sides' updates at the timed batch", is_in_result=False)
SETTINGS = Rule("settings", 0.0, "effective settings that differ and change the mathematics")
RESOURCES = Rule("resources", 0.0, "threads, cores, instruction sets and compiler effort that differ")
DETERMINISM = Rule("determinism", 0.0, "tensors that differ when run twice", is_in_result=False)
PRUNING = Rule("pruning", 1e-10, "distance of a pruned model from the full one with zeros", is_in_result=False)
# The envelope is the largest distance of a handful of twins. The next twin may well lie a little outside.
TRAJECTORY = Rule("trajectory", 3.0, "distance between the losses, over the one-ulp envelope")
ACCURACY = Rule("accuracy", 0.01, "bound of the difference in test accuracy (TOST)")

RULES = {
    rule.name: rule
    for rule in (SEMANTIC, SCALING, PRECISION, UPDATE, SETTINGS, RESOURCES, DETERMINISM, PRUNING, TRAJECTORY, ACCURACY)
}

UPDATE_NOISE = 1.25
"""Most that a one-ulp change of the weights may do to an update that the gate `update` judges."""


class Incomparable(Exception):
    """Two records that no arithmetic can compare: a `tensor` missing, of another shape or dtype, or not finite."""

    def __init__(self, tensor: str, what: str) -> None:
        super().__init__(f"{tensor} {what}")
        self.tensor = tensor


def measure_errors(baseline: Arrays, contender: Arrays) -> dict[str, float]:
    """Return each tensor's error, initial values excluded (they must be equal) and buffers as change from the start.

    Raises:
        Incomparable: naming the tensor, before any arithmetic on it.
    """
    check_comparable(baseline, contender)
    for name, reference in baseline.items():
        if name.startswith("initial/") and not np.array_equal(contender[name], reference):
            raise Incomparable(name, "differs although both start from the same bits")
    values, references = compute_changes(contender), compute_changes(baseline)
    return measure_by_name(
        references,
        lambda name: compute_relative_error(
            values[name], references[name], compute_reference_size(name, references[name], baseline)
        ),
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

    every = sort_by_execution([*baseline, *(name for name in contender if name not in baseline)])
    measure_by_name(every, check, baseline)


def measure_scaling(
    e32: dict[str, float], e64: dict[str, float], baseline: Mapping[str, Arrays], contender: Mapping[str, Arrays]
) -> dict[str, float]:
    """Return e32 / e64 by tensor, from both sides' records by precision.

    Both errors have lower bounds. Storage can resolve no less, since bits may agree by chance. A change of a stored
    tensor is resolved to |tensor| / |change| units of roundoff, because the tensor is rounded after the addition. And
    e32 is at least the smaller of both sides' own float32 errors. Two programs of one framework may round alike in
    float32 but not in float64, which has other kernels.
    """

    def ratio(name: str) -> float:
        if math.isinf(e64[name]):  # the reference is zero in float64, and then in float32 as well
            return 1.0
        least = compute_coarseness(name, baseline["float64"])
        return max(e32[name], ROUNDOFF32 * least) / max(e64[name], ROUNDOFF64 * least)

    ratios = measure_by_name(e64, ratio, baseline["float64"])
    weak = [name for name in e64 if ratios[name] < SCALING.limit and e64[name] <= SEMANTIC.limit]
    sides = (
        [(compute_changes(side["float64"]), compute_changes(side["float32"])) for side in (baseline, contender)]
        if weak
        else []
    )

    def own(name: str) -> float:
        return min(
            compute_relative_error(
                single[name], exact[name], compute_reference_size(name, exact[name], baseline["float64"])
            )
            for exact, single in sides
        )

    of_one_side = measure_by_name(weak, own, baseline["float64"])
    return ratios | {name: max(ratios[name], error / e64[name]) for name, error in of_one_side.items()}


def judge_semantic(e64: Mapping[str, float]) -> Gate:
    """Judge that no tensor's error in float64 exceeds 1e-10."""
    worst = max(e64, key=lambda name: e64[name])
    return SEMANTIC.judge(e64[worst], worst)


def judge_scaling(ratios: Mapping[str, float]) -> Gate:
    """Judge that every error falls by 1e6 from float32 to float64.

    Rounding alone makes it fall by 5e8. A different computation leaves it as large.
    """
    worst = min(ratios, key=lambda name: ratios[name])
    return SCALING.judge(ratios[worst], worst)


def judge_determinism(once: Arrays, again: Arrays) -> Gate:
    """Judge that two runs of one side are equal bit for bit. The value counts the tensors that are not."""
    unequal = [name for name in sort_by_execution(list(once)) if not np.array_equal(once[name], again[name])]
    return DETERMINISM.judge(float(len(unequal)), unequal[0] if unequal else None)


def judge_update(baseline: Updates, contender: Updates) -> Gate:
    """Judge that both sides' updates at the timed batch agree in size and direction, within a factor of two.

    Updates of buffers must agree a hundred times as closely. The gate fails if it can judge no parameter.
    """
    distances, names = update_distances(baseline.changes, contender.changes), select_judged(baseline, contender)
    if all(map(is_buffer, names)):
        return UPDATE.judge(None, None)
    worst = max(names, key=lambda name: distances[name])
    return UPDATE.judge(distances[worst], worst)


def select_judged(baseline: Updates, contender: Updates) -> list[str]:
    """Return the tensors whose update survives a one-ulp change of the weights on at least one side.

    The update of any other tensor is only rounding, of computation or of storage.
    """
    ours, theirs = baseline.noise, contender.noise
    names = dict.fromkeys((*ours, *theirs))
    return [name for name in names if min(ours.get(name, math.inf), theirs.get(name, math.inf)) <= UPDATE_NOISE]


def is_failure(e64: float, ratio: float) -> bool:
    """Return whether one tensor fails the semantic or the scaling gate."""
    return not (e64 <= SEMANTIC.limit and ratio >= SCALING.limit)
