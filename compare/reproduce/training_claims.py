"""Whether a stored result's accuracies and losses come again, by rules that fit how they were measured. Pure functions.

| stored | REPRODUCED | NOT REPRODUCED |
|---|---|---|
| accuracies over seeds (`samestep agree`) | mean difference within one point (two one-sided tests) | wholly outside |
| one accuracy | within one point | else, where the Wilson intervals over the images have no common point |
| losses by step with an envelope (`samestep agree`) | the trajectory gate passes between the two runs | it fails |
| final loss | within 1 %, or three times the distance between contenders of a run that agree | else |

What is neither is INCONCLUSIVE. Contenders that agree start from the same weights and see the same batches; what lies
between their losses is what rounding makes of a training run, and so much may lie between two runs. Nothing is judged
where data or initial weights are other ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from compare.agreement import trajectory
from compare.agreement.gates import ACCURACY
from compare.agreement.trajectory import Curves
from compare.base import statistics
from compare.report.sentences import percent
from compare.reproduce.claims import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Claim,
    Judged,
)

Object = Mapping[str, Any]

LOSS_MARGIN = 0.01
SPREADS = 3.0
_ROUNDING = 1e-12


def judge(stored: Object, result: Object) -> Iterator[Claim]:
    """Yield the claims on accuracy and loss of every contender that was trained."""
    unequal = _other_start(stored["spec"], result["spec"])
    now = {each["name"]: each for each in result["contenders"]}
    for each in stored["contenders"]:
        if each["training"] is None:
            continue
        here = now[each["name"]]
        if unequal or here["training"] is None:
            reason = unequal or f"it was not trained here: {here['reason']}"
            yield Claim(f"{each['name']}: training", "trained", here["status"], INCONCLUSIVE, reason)
            continue
        yield from _accuracies(stored, result, each, here)
        yield _loss(stored, result, each, here)


def accuracy(stored: float, here: float, images: int, confidence: float) -> Judged:
    """Judge two accuracies, each of one training run, over as many images."""
    if abs(stored - here) <= ACCURACY.limit + _ROUNDING:
        return REPRODUCED, "within one point"
    (low, high), (other_low, other_high) = (_wilson(value, images, confidence) for value in (stored, here))
    if high < other_low or other_high < low:
        return NOT_REPRODUCED, f"more than {images:,} images leave to chance"
    return INCONCLUSIVE, f"more than one point, but no more than {images:,} images leave to chance"


def accuracies(stored: Sequence[float], here: Sequence[float]) -> Judged:
    """Judge two series of accuracies, over the same seeds."""
    if len(stored) != len(here) or len(stored) < 2:
        return INCONCLUSIVE, f"{len(stored)} seeds against {len(here)}"
    low, high = statistics.equivalence([b - a for a, b in zip(stored, here, strict=True)])
    interval = f"difference {100 * low:+.2f} to {100 * high:+.2f} points over {len(stored)} seeds"
    if max(abs(low), abs(high)) <= ACCURACY.limit + _ROUNDING:
        return REPRODUCED, interval
    return (NOT_REPRODUCED if low > ACCURACY.limit or high < -ACCURACY.limit else INCONCLUSIVE), interval


def final_loss(stored: float | None, here: float | None, spread: float) -> Judged:
    """Judge two final losses (None: not finite); `spread` is the relative distance between contenders that agree."""
    if stored is None or here is None:
        return (REPRODUCED, "not finite again") if stored is here else (NOT_REPRODUCED, "one of them is not finite")
    limit, found = max(LOSS_MARGIN, SPREADS * spread), _distance(stored, here)
    words = f"{percent(found)} apart, limit {percent(limit)}"
    return (REPRODUCED if found <= limit else NOT_REPRODUCED), words


def _accuracies(stored: Object, result: Object, each: Object, here: Object) -> Iterator[Claim]:
    name = each["name"]
    before, now = (_found(source, "accuracies", name) for source in (stored, result))
    if before and now:
        told = [f"{100 * sum(values) / len(values):.2f} % in the mean" for values in (before, now)]
        yield Claim(f"{name}: test accuracy", told[0], told[1], *accuracies(before, now))
        return
    for part in ("train", "test"):
        a, b = (source["training"][f"{part}_accuracy"] for source in (each, here))
        if a is not None and b is not None:
            judged = accuracy(a, b, result["spec"][f"{part}_images"], stored["spec"]["confidence"])
            yield Claim(f"{name}: {part} accuracy", f"{100 * a:.2f} %", f"{100 * b:.2f} %", *judged)


def _loss(stored: Object, result: Object, each: Object, here: Object) -> Claim:
    name = each["name"]
    a, b = (_last(source["training"]) for source in (each, here))
    before, now = ("not finite" if loss is None else f"{loss:.4g}" for loss in (a, b))
    curves = [_found(source, "trajectory", name) for source in (stored, result)]
    if all(curves):
        return Claim(f"{name}: loss by step", before, now, *_trajectories(curves[0], curves[1]))
    return Claim(f"{name}: final loss", before, now, *final_loss(a, b, max(_spread(stored), _spread(result))))


def _found(result: Object, what: str, name: str) -> Any:
    return result["agreement"].get(what, {}).get(name)


def _last(training: Object) -> float | None:
    return training["loss"][-1] if training["loss"] else None


def _trajectories(stored: Object, here: Object) -> Judged:
    sides = [Curves(*(np.array(each[key], np.float64) for key in ("loss", "envelope"))) for each in (stored, here)]
    if not all(each.own.size == each.envelope.size > 0 for each in sides):
        return INCONCLUSIVE, "a curve and its envelope have no common length"
    gate = trajectory.judge_losses(*sides)
    if gate.value is None:
        return NOT_REPRODUCED, f"nothing to compare at {gate.worst_tensor}"
    words = f"{gate.value:.2g} times the one-ulp envelope, limit {gate.limit:g}"
    return (REPRODUCED if gate.passed else NOT_REPRODUCED), words


def _spread(result: Object) -> float:
    """Return the largest relative distance between the final losses of contenders that agree."""
    last = {each["name"]: _last(each["training"]) for each in result["contenders"] if each["training"]}
    pairs = [each for each in result["agreement"]["pairs"] if each["status"] == "pass"]
    ends = [(last.get(each["baseline"]), last.get(each["contender"])) for each in pairs]
    return max((_distance(a, b) for a, b in ends if a is not None and b is not None), default=0.0)


def _distance(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _other_start(stored: Object, here: Object) -> str | None:
    for key, what in (("data_sha256", "data"), ("weights_sha256", "initial weights")):
        if stored[key] != here[key]:
            return f"the {what} are not those of the stored run"
    return None


def _wilson(proportion: float, count: int, confidence: float) -> tuple[float, float]:
    """Return the interval of a proportion in `count` trials (Wilson, JASA 22, 1927)."""
    # Here, because scipy.stats takes a second to import, and it has no annotations.
    from scipy import stats  # pyright: ignore[reportMissingTypeStubs]

    test = cast(Any, stats).binomtest(round(proportion * count), count)
    interval = test.proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)
