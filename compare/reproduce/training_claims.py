"""Judge whether a repeated run reproduces a stored result's accuracies and losses. Pure functions.

| stored | REPRODUCED | NOT REPRODUCED |
|---|---|---|
| accuracies over seeds (`samestep agree`) | mean difference within one point (two one-sided tests) | wholly outside |
| one accuracy | within one point | more than one point apart, with separate Wilson intervals over the images |
| losses by step with an envelope (`samestep agree`) | the trajectory gate passes between the two runs | it fails |
| final loss | within 1 %, or three times the distance between contenders that agree | further apart |

Everything else is INCONCLUSIVE. Contenders that agree start from the same weights and see the same batches, so their
losses differ by rounding alone. Two runs may differ as much. Nothing is judged if the data or the initial weights
differ.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from compare.agreement import trajectory
from compare.agreement.gates import ACCURACY
from compare.agreement.trajectory import Curves
from compare.base import statistics
from compare.report.sentences import format_percent
from compare.reproduce.claims import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Claim,
    Judgement,
)
from compare.results.model import Contender, Result, Spec, Training, Trajectory

LOSS_MARGIN = 0.01
SPREADS = 3.0
_ROUNDING = 1e-12


def judge(stored: Result, result: Result) -> Iterator[Claim]:
    """Yield the claims on accuracy and loss of every contender that was trained."""
    other_start = _explain_other_start(stored.spec, result.spec)
    contenders = {contender.name: contender for contender in result.contenders}
    for contender in stored.contenders:
        if contender.training is None:
            continue
        here = contenders[contender.name]
        if other_start or here.training is None:
            reason = other_start or f"it was not trained here: {here.reason}"
            yield Claim(f"{contender.name}: training", "trained", here.status, INCONCLUSIVE, reason)
            continue
        yield from _judge_accuracies(stored, result, contender.name, contender.training, here.training)
        yield _judge_loss(stored, result, contender.name, contender.training, here.training)


def judge_accuracy(stored: float, here: float, images: int, confidence: float) -> Judgement:
    """Judge two accuracies, each of one training run over as many images."""
    if abs(stored - here) <= ACCURACY.limit + _ROUNDING:
        return REPRODUCED, "within one point"
    (low, high), (other_low, other_high) = (_wilson_interval(value, images, confidence) for value in (stored, here))
    if high < other_low or other_high < low:
        return NOT_REPRODUCED, f"more than one point, and more than chance over {images:,} images"
    return INCONCLUSIVE, f"more than one point, but no more than chance over {images:,} images"


def judge_accuracies(stored: Sequence[float], here: Sequence[float]) -> Judgement:
    """Judge two series of accuracies over the same seeds."""
    if len(stored) != len(here) or len(stored) < 2:
        return INCONCLUSIVE, f"{len(stored)} seeds against {len(here)}"
    low, high = statistics.estimate_equivalence([b - a for a, b in zip(stored, here, strict=True)])
    interval = f"difference {100 * low:+.2f} to {100 * high:+.2f} points over {len(stored)} seeds"
    if max(abs(low), abs(high)) <= ACCURACY.limit + _ROUNDING:
        return REPRODUCED, interval
    return (NOT_REPRODUCED if low > ACCURACY.limit or high < -ACCURACY.limit else INCONCLUSIVE), interval


def judge_final_loss(stored: float | None, here: float | None, spread: float) -> Judgement:
    """Judge two final losses, None if not finite.

    `spread` is the largest relative distance between contenders that agree.
    """
    if stored is None or here is None:
        return (REPRODUCED, "not finite again") if stored is here else (NOT_REPRODUCED, "one of them is not finite")
    limit, distance = max(LOSS_MARGIN, SPREADS * spread), _relative_distance(stored, here)
    reason = f"{format_percent(distance)} apart, limit {format_percent(limit)}"
    return (REPRODUCED if distance <= limit else NOT_REPRODUCED), reason


def _judge_accuracies(stored: Result, result: Result, name: str, before: Training, after: Training) -> Iterator[Claim]:
    over_seeds = [source.agreement.accuracies.get(name, ()) for source in (stored, result)]
    if all(over_seeds):
        means = [f"{100 * sum(values) / len(values):.2f} % in the mean" for values in over_seeds]
        yield Claim(f"{name}: test accuracy", means[0], means[1], *judge_accuracies(over_seeds[0], over_seeds[1]))
        return
    spec, confidence = result.spec, stored.spec.confidence
    for part, a, b, images in (
        ("train", before.train_accuracy, after.train_accuracy, spec.train_images),
        ("test", before.test_accuracy, after.test_accuracy, spec.test_images),
    ):
        if a is not None and b is not None:
            judgement = judge_accuracy(a, b, images, confidence)
            yield Claim(f"{name}: {part} accuracy", f"{100 * a:.2f} %", f"{100 * b:.2f} %", *judgement)


def _judge_loss(stored: Result, result: Result, name: str, before: Training, after: Training) -> Claim:
    a, b = _final_loss(before), _final_loss(after)
    texts = ["not finite" if loss is None else f"{loss:.4g}" for loss in (a, b)]
    curves = [source.agreement.trajectory.get(name) for source in (stored, result)]
    if curves[0] and curves[1]:
        return Claim(f"{name}: loss by step", texts[0], texts[1], *_judge_trajectories(curves[0], curves[1]))
    spread = max(_loss_spread(stored), _loss_spread(result))
    return Claim(f"{name}: final loss", texts[0], texts[1], *judge_final_loss(a, b, spread))


def _final_loss(training: Training) -> float | None:
    return training.loss[-1] if training.loss else None


def _judge_trajectories(stored: Trajectory, here: Trajectory) -> Judgement:
    sides = [Curves(np.array(each.loss, np.float64), np.array(each.envelope, np.float64)) for each in (stored, here)]
    if not all(curves.own.size == curves.envelope.size > 0 for curves in sides):
        return INCONCLUSIVE, "a curve and its envelope have different lengths"
    gate = trajectory.judge_losses(*sides)
    if gate.value is None:
        return NOT_REPRODUCED, f"nothing to compare at {gate.worst_tensor}"
    reason = f"{gate.value:.2g} times the one-ulp envelope, limit {gate.limit:g}"
    return (REPRODUCED if gate.passed else NOT_REPRODUCED), reason


def _loss_spread(result: Result) -> float:
    """Return the largest relative distance between the final losses of contenders that agree."""
    losses = {contender.name: _contender_loss(contender) for contender in result.contenders}
    pairs = [
        (losses.get(pair.baseline), losses.get(pair.contender))
        for pair in result.agreement.pairs
        if pair.status == "pass"
    ]
    return max((_relative_distance(a, b) for a, b in pairs if a is not None and b is not None), default=0.0)


def _contender_loss(contender: Contender) -> float | None:
    return _final_loss(contender.training) if contender.training else None


def _relative_distance(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _explain_other_start(stored: Spec, here: Spec) -> str | None:
    if stored.data_sha256 != here.data_sha256:
        return "the data differ from those of the stored run"
    if stored.weights_sha256 != here.weights_sha256:
        return "the initial weights differ from those of the stored run"
    return None


def _wilson_interval(proportion: float, count: int, confidence: float) -> tuple[float, float]:
    """Return the interval of a proportion in `count` trials (Wilson, JASA 22, 1927)."""
    # Imported here, because scipy.stats takes a second to import. It has no annotations.
    from scipy import stats  # pyright: ignore[reportMissingTypeStubs]

    test = cast(Any, stats).binomtest(round(proportion * count), count)
    interval = test.proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)
