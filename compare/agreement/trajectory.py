"""Gate 4: over a training run the two sides stay as close as one side's own runs that round otherwise, its twins.

A twin begins one ulp beside the initial weights, and takes the images of each batch in another order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compare.agreement.gates import ACCURACY, TRAJECTORY, Gate
from compare.base.interface import Array
from compare.base.statistics import estimate_equivalence


@dataclass(frozen=True)
class Curves:
    """The loss of every training step of one side: `own` [steps], and how far its perturbed twins went from it.

    `envelope` [steps] is the largest distance of any twin from `own` up to each step, not finite where a twin's is not.
    """

    own: Array
    envelope: Array

    @classmethod
    def of(cls, own: Array, twins: Array) -> "Curves":
        """Return the curves of a side with its perturbed `twins` [twins, steps]."""
        return cls(own, np.maximum.accumulate(np.abs(twins - own).max(0)))


def judge_losses(baseline: Curves, contender: Curves) -> Gate:
    """Compare the distance between the sides with the wider envelope, both as their largest value so far.

    A loss that is not finite fails. So do unequal numbers of losses.
    """
    if baseline.own.size != contender.own.size:
        shorter = min(baseline.own.size, contender.own.size)
        return TRAJECTORY.judge(None, f"loss at step {shorter + 1}, missing on one side")
    every = (baseline.own, baseline.envelope, contender.own, contender.envelope)
    if not all(np.isfinite(each).all() for each in every):
        return TRAJECTORY.judge(None, "loss")
    distance = np.maximum.accumulate(np.abs(contender.own - baseline.own))
    # A loss is stored in float32: the envelope cannot be known to less than its resolution.
    resolution = 2.0**-23 * np.maximum.accumulate(np.maximum(np.abs(baseline.own), np.finfo(np.float32).tiny))
    strain = distance / np.maximum(np.maximum(baseline.envelope, contender.envelope), resolution)
    worst = int(strain.argmax())
    return TRAJECTORY.judge(float(strain[worst]), f"loss at step {worst + 1}")


def judge_accuracies(
    baseline: Sequence[float],
    contender: Sequence[float],
    twins: Sequence[tuple[Sequence[float], Sequence[float]]] = (),
) -> Gate:
    """Judge final test accuracies over seeds: TOST at 95 %, margin one point of accuracy.

    If training is so unsteady that rounding alone moves accuracy by more, no two programs could stay within a point.
    `twins` are pairs of a side's accuracies and its one-ulp twins'. Their own bound, times the limit of the trajectory
    gate, replaces the margin if it is larger.
    """
    bound = _bound(baseline, contender)
    limit = max([ACCURACY.limit, *(TRAJECTORY.limit * _bound(own, twin) for own, twin in twins)])
    beside = ", by one-ulp twins" if limit > ACCURACY.limit else ""
    return ACCURACY.judge(bound, f"test accuracy, {len(baseline)} seeds{beside}", limit=limit)


def _bound(one: Sequence[float], other: Sequence[float]) -> float:
    low, high = estimate_equivalence([b - a for a, b in zip(one, other, strict=True)])
    return max(abs(low), abs(high))
