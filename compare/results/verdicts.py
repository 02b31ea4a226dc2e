"""What follows from a run's raw samples: step times, ratios, verdicts, the state of the agreement.

Pure functions over result objects (`compare.results.result_file`). What a run writes and what a reader recomputes is this one code.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from compare.agreement.certificate import select_worst
from compare.agreement.gates import Gate
from compare.base import statistics

Object = Mapping[str, Any]

LEAST_ROUNDS = 2

UNPROVEN = "did not do the work that was timed"

SKIPPED = "agreement was skipped, so nothing shows that both sides computed the same thing"

SEQUENTIAL = (
    "invalid design: all rounds of one contender were timed before the other's, so that a drift of the machine cannot "
    "be told from a difference between them"
)


def completed(result: Object) -> dict[str, Any]:
    """Return a result with all that follows from its raw samples: comparisons, figures of contenders and agreement.

    What it has of these is replaced. Read are the spec, `voided`, and of a contender its status, `samples` and
    `unproven`; of the agreement its `pairs`.
    """
    agreement = result["agreement"]
    found = {**result, "agreement": {**agreement, **agreement_state(result)}}
    found["contenders"] = [timed(result, contender) for contender in result["contenders"]]
    rivals = found["contenders"][1:] if is_comparison(result) else []
    found["comparisons"] = [_comparison(found, contender) for contender in rivals]
    return found


def is_comparison(result: Object) -> bool:
    """Whether a result is of a run that was to time rounds, be it cut off before one was whole; not a certificate's."""
    return rounds_requested(result) > 0


def is_cut_off(result: Object) -> bool:
    """Whether a run was interrupted before all rounds that were asked for were whole."""
    return result["spec"]["rounds"] < rounds_requested(result)


def rounds_requested(result: Object) -> int:
    """Return how many rounds were asked for; older results say only how many were timed."""
    return result["spec"].get("rounds_requested", result["spec"]["rounds"])


def medians(result: Object, contender: Object) -> dict[int, float]:
    """Return the median block, seconds per step, of every round that counts, by round counted from 0."""
    void, step = _void(result), contender["step_seconds"]
    return {index: median(blocks) for index, blocks in enumerate(step["samples"]) if index not in void} if step else {}


def timed(result: Object, contender: Object) -> dict[str, Any]:
    """Return a contender with what follows from its blocks: step times and images per second.

    Median, mean and interquartile range are of all blocks of the rounds that count; of all rounds where none does.
    Of the result are read `voided`, and the batch size and the confidence in its spec.
    """
    step = contender["step_seconds"]
    if not step:
        return {**contender, "step_seconds": None, "images_per_second": None}
    counting, confidence = medians(result, contender), result["spec"]["confidence"]
    rounds = list(counting.values())
    interval = statistics.geometric_interval(rounds, confidence) if len(rounds) >= LEAST_ROUNDS else None
    estimate = interval.estimate if interval else next(iter(rounds), None)
    figures: dict[str, Any] = {
        "estimate": estimate,
        **statistics.summarise([step["samples"][index] for index in counting] or step["samples"]),
        "interval": interval and asdict(interval),
    }
    return {
        **contender,
        "step_seconds": {**figures, **step, **figures},  # twice: a reader finds them before thousands of samples
        "images_per_second": estimate and result["spec"]["batch_size"] / estimate,
    }


def step_seconds(contender: Object) -> float | None:
    """Return a contender's step time by the rounds that count; None where it was not timed, or none counts.

    It is the geometric mean of their median blocks. A result of before it was stored may have too few of them: then it
    is the median of all blocks.
    """
    step = contender["step_seconds"]
    if not step:
        return None
    return step["interval"]["estimate"] if step["interval"] else step.get("estimate", step["median"])


def gates(listed: Sequence[Object]) -> tuple[Gate, ...]:
    """Return the gates of a result as `compare.agreement` has them."""
    return tuple(
        Gate(each["name"], each["value"], each["limit"], each["passed"], each["worst_tensor"]) for each in listed
    )


def _void(result: Object) -> set[int]:
    return {each["round"] - 1 for each in result["voided"]}


def _comparison(result: Object, contender: Object) -> dict[str, Any]:
    baseline, spec = result["contenders"][0], result["spec"]
    a, b = medians(result, baseline), medians(result, contender)
    rounds = [index for index in a if index in b]
    ratio = detectable = None
    outliers: list[int] = []
    if len(rounds) >= LEAST_ROUNDS:
        ratio = statistics.paired_ratio([a[r] for r in rounds], [b[r] for r in rounds], spec["confidence"])
        differences = [math.log(b[r] / a[r]) for r in rounds]
        detectable = statistics.minimum_detectable_effect(differences, spec["confidence"])
        outliers = [rounds[index] + 1 for index in statistics.outliers(differences)]
    invalid = _invalid(result, contender, len(rounds))
    decided = "INCONCLUSIVE" if ratio is None else statistics.verdict(ratio, spec["margin"])
    return {
        "baseline": baseline["name"],
        "contender": contender["name"],
        "ratio": ratio and asdict(ratio),
        "verdict": "INVALID" if invalid else decided,
        "rounds": len(rounds),
        "margin": spec["margin"],
        "detectable": detectable,
        "outliers": outliers,
        "reason": invalid or _undecided(result, len(rounds)),
    }


def _undecided(result: Object, rounds: int) -> str | None:
    """Return why nothing can be said where too few rounds are left, None otherwise."""
    if rounds >= LEAST_ROUNDS:
        return None
    whole = result["spec"]["rounds"]
    cut_off = [f"interrupted after {whole} of {rounds_requested(result)} rounds"] if is_cut_off(result) else []
    void = [f"{len(result['voided'])} of {whole} rounds are void"] if result["voided"] else []
    return "; ".join(cut_off + void) or None


def _invalid(result: Object, contender: Object, rounds: int) -> str | None:
    baseline = result["contenders"][0]
    for side in (baseline, contender):
        if side["status"] != "ok":
            return f"{side['name']} failed ({side['status']}): {side['reason']}"
        if side.get("unproven"):
            return f"{side['name']} {UNPROVEN}: {side['unproven']}"
    if result["spec"].get("design") == "sequential":
        return SEQUENTIAL
    if rounds < LEAST_ROUNDS and not _undecided(result, rounds):
        return f"only {rounds} rounds were timed"
    if not result["spec"]["agreement_requested"]:
        return SKIPPED
    pair = next((each for each in result["agreement"]["pairs"] if each["contender"] == contender["name"]), None)
    if pair is None or pair["status"] != "pass":
        where = pair["first_mismatch"] if pair else "no certificate was made"
        return f"no agreement with {baseline['name']}: {where}"
    return None


def agreement_state(result: Object) -> dict[str, Any]:
    """Return what follows from an agreement's pairs: its status and reason, the worst gates, the first mismatch.

    Read are the number of contenders and whether the spec asked for an agreement, too.
    """
    pairs = result["agreement"]["pairs"]
    expected = len(result["contenders"]) - 1
    found = {pair["status"] for pair in pairs}
    status = "fail" if "fail" in found else "skipped" if "skipped" in found else "pass"
    reason = None
    if not result["spec"]["agreement_requested"]:
        status, reason = "skipped", "skipped on request (--skip-agreement)"
    elif status == "skipped" or (status == "pass" and len(pairs) < expected):
        status, reason = "skipped", "a contender failed before its certificate was complete"
    worst = select_worst(gate for pair in pairs for gate in gates(pair["gates"]))
    return {
        "status": status,
        "reason": reason,
        "gates": [asdict(gate) for gate in worst],
        "first_mismatch": next((pair["first_mismatch"] for pair in pairs if pair["first_mismatch"]), None),
    }
