"""Compute step times, ratios, verdicts and the agreement's state from the samples of a run.

All functions are pure. A run and a reader of its result use the same code.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean, median

import numpy as np

from compare.agreement.certificate import select_worst
from compare.base import early_stopping, statistics
from compare.results.model import Agreement, Comparison, Contender, Latency, Result, Spec, StepTimes, Stopped

LEAST_ROUNDS = 2
"""Rounds that an interval needs. A verdict needs the `least_rounds` of the spec."""

LEAST_REQUESTS_OF_P99 = 100
"""Requests of a round from which p99 is a figure: below, it is the slowest request."""

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

UNPROVEN = "did not do the work that was timed"

SKIPPED = "agreement was skipped, so nothing shows that both sides computed the same thing"

SEQUENTIAL = (
    "invalid design: all rounds of one contender ran before the other's, so a drift of the machine looks like a "
    "difference between them"
)


def complete_result(result: Result) -> Result:
    """Compute the derived values of a result anew from its samples.

    Step times, rates, comparisons and the agreement's state are replaced. They follow from the spec, `voided`, each
    contender's status, `samples` and `unproven`, and the agreement's `pairs`.
    """
    contenders = tuple(
        replace(
            contender,
            step_seconds=contender.step_seconds and _summarise_again(result, contender.step_seconds),
            images_per_second=None,
        )
        for contender in result.contenders
    )
    contenders = tuple(
        replace(contender, latency=contender.latency and _summarise_latency(result, contender.latency))
        for contender in contenders
    )
    contenders = tuple(
        replace(contender, images_per_second=_compute_images_per_second(result.spec, contender))
        for contender in contenders
    )
    timed = replace(result, contenders=contenders)
    rivals = contenders[1:] if result.spec.is_comparison else ()
    sizes = result.spec.batch_sizes or (None,)
    comparisons = [_compare(timed, rival, size) for rival in rivals for size in sizes]
    if result.spec.looks is not None:
        comparisons = [
            replace(each, stopped=_explain_stop(result.spec, each.rounds, comparisons)) for each in comparisons
        ]
    return replace(
        timed,
        comparisons=tuple(comparisons),
        agreement=conclude_agreement(result),
    )


def claim_failed(result: Result) -> bool:
    """Tell whether a claim failed: no agreement, or work that was not proved."""
    return result.agreement.status == "fail" or any(
        comparison.verdict == "INVALID" and comparison.reason not in (SKIPPED, SEQUENTIAL)
        for comparison in result.comparisons
    )


def is_undecided(result: Result) -> bool:
    """Tell whether a comparison is INCONCLUSIVE."""
    return any(comparison.verdict == "INCONCLUSIVE" for comparison in result.comparisons)


def contender_failed(result: Result) -> bool:
    """Tell whether any contender failed."""
    return any(contender.status != "ok" for contender in result.contenders)


def find_medians(result: Result, contender: Contender, batch_size: int | None = None) -> dict[int, float]:
    """Return the median block in seconds per step of each round that counts, by round counted from 0.

    With a `batch_size`, return the median request of that size.
    """
    if batch_size is None:
        return find_round_medians(contender.samples, result.void_rounds)
    latency = (contender.latency or {}).get(str(batch_size))
    return find_round_medians(latency.samples if latency else (), result.void_rounds)


def summarise_steps(
    samples: Sequence[Sequence[float]],
    windows: Sequence[Sequence[Sequence[float]]],
    steps_per_block: int,
    void: Collection[int],
    confidence: float,
) -> StepTimes:
    """Return the step times of blocks.

    Args:
        samples: [rounds][blocks] seconds per step.
        windows: [rounds][blocks] start and end.
        steps_per_block: steps in each block.
        void: rounds that do not count, the first being 1.
        confidence: of the interval.
    """
    counting = find_round_medians(samples, void)
    rounds = list(counting.values())
    interval = statistics.estimate_geometric_interval(rounds, confidence) if len(rounds) >= LEAST_ROUNDS else None
    spread = statistics.summarise([samples[index] for index in counting] or samples)
    return StepTimes(
        estimate=interval.estimate if interval else next(iter(rounds), None),
        median=spread["median"],
        mean=spread["mean"],
        iqr=spread["iqr"],
        interval=interval,
        samples=tuple(map(tuple, samples)),
        windows=tuple(tuple(map(tuple, blocks)) for blocks in windows),
        steps_per_block=steps_per_block,
    )


def summarise_requests(latency: Latency, batch_size: int, void: Collection[int], confidence: float) -> Latency:
    """Return requests of one batch size with all figures that follow from their samples.

    A round's quantiles are over its requests, and the figures are geometric means over rounds. p99 needs
    `LEAST_REQUESTS_OF_P99` requests in each round.
    """
    rounds = [values for index, values in enumerate(latency.samples) if index + 1 not in void]
    quantiles = {name: [float(np.quantile(values, share)) for values in rounds] for name, share in _QUANTILES.items()}
    absent = {name: reason for name, reason in latency.absent.items() if name != "p99"}
    least = min(map(len, rounds), default=0)
    if least < LEAST_REQUESTS_OF_P99:
        quantiles["p99"] = []
        absent["p99"] = f"it needs {LEAST_REQUESTS_OF_P99} requests in each round, and there were {least}"
    intervals = {
        name: statistics.estimate_geometric_interval(values, confidence) if len(values) >= LEAST_ROUNDS else None
        for name, values in quantiles.items()
    }
    estimates = {name: geometric_mean(values) if values else None for name, values in quantiles.items()}
    queued = [median(blocks) for index, blocks in enumerate(latency.queued) if index + 1 not in void]
    enqueued = [seconds for index, seconds in enumerate(latency.enqueued) if index + 1 not in void]
    p50, device = estimates["p50"], latency.device_seconds
    middle = intervals["p50"]
    return replace(
        latency,
        p50=p50,
        p90=estimates["p90"],
        p99=estimates["p99"],
        low=middle and middle.low,
        high=middle and middle.high,
        intervals=intervals,
        images_per_second=batch_size / geometric_mean(queued) if queued else None,
        enqueue_seconds=median(enqueued) if enqueued else None,
        host_seconds=max(0.0, p50 - device) if p50 is not None and device is not None else None,
        absent=absent,
    )


def conclude_agreement(result: Result) -> Agreement:
    """Return the agreement with everything that follows from its pairs: status, reason, worst gates, first mismatch."""
    agreement = result.agreement
    statuses = {pair.status for pair in agreement.pairs}
    status = "fail" if "fail" in statuses else "skipped" if "skipped" in statuses else "pass"
    reason = None
    if not result.spec.agreement_requested:
        status, reason = "skipped", "skipped on request (--skip-agreement)"
    elif status == "skipped" or (status == "pass" and len(agreement.pairs) < len(result.contenders) - 1):
        status, reason = "skipped", "a contender failed before its certificate was complete"
    return replace(
        agreement,
        status=status,
        reason=reason,
        gates=tuple(select_worst(gate for pair in agreement.pairs for gate in pair.gates)),
        first_mismatch=next((pair.first_mismatch for pair in agreement.pairs if pair.first_mismatch), None),
    )


def _summarise_again(result: Result, step: StepTimes) -> StepTimes:
    counting = len(find_round_medians(step.samples, result.void_rounds))
    confidence = result.spec.confidence_of(counting)
    again = summarise_steps(step.samples, step.windows, step.steps_per_block, result.void_rounds, confidence)
    return replace(again, extra=step.extra)


def _summarise_latency(result: Result, latency: Mapping[str, Latency]) -> dict[str, Latency]:
    again = dict[str, Latency]()
    for size, requests in latency.items():
        counting = len(find_round_medians(requests.samples, result.void_rounds))
        confidence = result.spec.confidence_of(counting)
        again[size] = summarise_requests(requests, int(size), result.void_rounds, confidence)
    return again


def _compute_images_per_second(spec: Spec, contender: Contender) -> float | None:
    step = contender.step_seconds
    return spec.batch_size / step.estimate if step and step.estimate else None


def find_round_medians(samples: Sequence[Sequence[float]], void: Collection[int]) -> dict[int, float]:
    """Return the median block of each round that counts, by round counted from 0.

    Args:
        samples: [rounds][blocks] seconds per step.
        void: rounds that do not count, the first being 1.
    """
    return {index: median(blocks) for index, blocks in enumerate(samples) if index + 1 not in void}


def _compare(result: Result, contender: Contender, batch_size: int | None) -> Comparison:
    baseline, spec = result.contenders[0], result.spec
    a, b = find_medians(result, baseline, batch_size), find_medians(result, contender, batch_size)
    rounds = [index for index in a if index in b]
    ratio = detectable = None
    outliers: list[int] = []
    if len(rounds) >= LEAST_ROUNDS:
        confidence = spec.confidence_of(len(rounds))
        ratio = statistics.estimate_paired_ratio([a[r] for r in rounds], [b[r] for r in rounds], confidence)
        differences = [math.log(b[r] / a[r]) for r in rounds]
        detectable = statistics.estimate_detectable_effect(differences, confidence)
        outliers = [rounds[index] + 1 for index in statistics.find_outliers(differences)]
    invalid = _explain_invalid(result, contender, len(rounds))
    may_decide = ratio is not None and len(rounds) >= spec.least_rounds
    decided = statistics.judge_ratio(ratio, spec.margin) if ratio and may_decide else "INCONCLUSIVE"
    return Comparison(
        baseline=baseline.name,
        contender=contender.name,
        ratio=ratio,
        verdict="INVALID" if invalid else decided,
        rounds=len(rounds),
        margin=spec.margin,
        detectable=detectable,
        outliers=tuple(outliers),
        reason=invalid or _explain_undecided(result, len(rounds)),
        batch_size=batch_size,
    )


def _explain_stop(spec: Spec, rounds: int, comparisons: Sequence[Comparison]) -> Stopped:
    """Return why a run that may stop early ended after so many valid rounds."""
    looks = {int(look): error for look, error in (spec.looks or {}).items()}
    ratios = [each.ratio for each in comparisons if each.ratio]
    verdicts = [each.verdict for each in comparisons]
    reason = early_stopping.explain_stop(rounds, ratios, verdicts, looks, spec.fail_above)
    return Stopped(rounds=rounds, reason=reason or "it was interrupted or too many rounds were void")


def _explain_undecided(result: Result, rounds: int) -> str | None:
    """Return why too few rounds count, None if enough do."""
    spec = result.spec
    if rounds >= spec.least_rounds:
        return None
    cut_off = [f"interrupted after {spec.rounds} of {spec.rounds_requested} rounds"] if spec.is_cut_off else []
    void = [f"{len(result.voided)} of {spec.rounds} rounds are void"] if result.voided else []
    few = [f"a verdict needs {spec.least_rounds} rounds"] if rounds >= LEAST_ROUNDS else []
    return "; ".join(cut_off + void or few) or None


def _explain_invalid(result: Result, contender: Contender, rounds: int) -> str | None:
    """Return why times must not be compared, None if they may be."""
    baseline = result.contenders[0]
    for side in (baseline, contender):
        if side.status != "ok":
            return f"{side.name} failed ({side.status}): {side.reason}"
        if side.unproven:
            return f"{side.name} {UNPROVEN}: {side.unproven}"
    if result.spec.design == "sequential":
        return SEQUENTIAL
    if rounds < LEAST_ROUNDS and not _explain_undecided(result, rounds):
        return f"only {rounds} rounds were timed"
    if not result.spec.agreement_requested:
        return SKIPPED
    pair = next((pair for pair in result.agreement.pairs if pair.contender == contender.name), None)
    if pair is None or pair.status != "pass":
        where = pair.first_mismatch if pair else "no certificate was made"
        return f"no agreement with {baseline.name}: {where}"
    return None
