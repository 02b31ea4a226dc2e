"""Check that the parts of a result do not contradict each other. A JSON schema cannot say this.

All functions are pure.
"""

import math
from collections.abc import Iterator
from reprlib import repr

from compare.agreement.gates import RULES
from compare.base import statistics
from compare.base.interface import Refused
from compare.results import verdicts
from compare.results.model import Result, Samples

SERIES = ("sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "power_watts", "clock_reasons")
"""Telemetry that reports show beside the samples' `seconds`."""

_TOLERANCE = 1e-9  # relative: a reader elsewhere may round a quotient's last digit


def check(result: Result) -> None:
    """Check that the parts of a result do not contradict each other.

    Raises:
        Refused: with the path of the first contradiction, and what is allowed there.
    """
    for find in (
        _find_name_faults,
        _find_ratio_faults,
        _find_claims_without_agreement,
        _find_round_faults,
        _find_window_faults,
        _find_telemetry_faults,
        _find_trajectory_faults,
        _find_fractions,
    ):
        for fault in find(result):
            raise Refused(fault)


def check_verdicts(result: Result) -> None:
    """Check that verdicts, agreement and images/s follow from their figures.

    Raises:
        Refused: with the path of the first that does not, and what is allowed there.
    """
    for find in (
        _find_gate_faults,
        _find_agreement_faults,
        _find_count_faults,
        _find_verdict_faults,
        _find_rate_faults,
    ):
        for fault in find(result):
            raise Refused(fault)


def _find_name_faults(result: Result) -> Iterator[str]:
    names = [contender.name for contender in result.contenders]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"contenders[{index}].name is {repr(name)} again; allowed: each name once"
    for index, comparison in enumerate(result.comparisons):
        for side in ("baseline", "contender"):
            name = comparison.baseline if side == "baseline" else comparison.contender
            if name not in names:
                yield f"comparisons[{index}].{side} is {repr(name)}; allowed: a contender's name"
    for place, listed in (("comparisons", result.comparisons), ("agreement.pairs", result.agreement.pairs)):
        pairs = [(pair.baseline, pair.contender, getattr(pair, "batch_size", None)) for pair in listed]
        for index, (baseline, contender, _) in enumerate(pairs):
            if pairs[index] in pairs[:index]:
                again = f"{repr(contender)} against {repr(baseline)}"
                yield f"{place}[{index}] is of {again} again; allowed: each pair once"


def _find_ratio_faults(result: Result) -> Iterator[str]:
    intervals = [(f"comparisons[{index}].ratio", each.ratio) for index, each in enumerate(result.comparisons)]
    for index, contender in enumerate(result.contenders):
        if contender.step_seconds:
            intervals.append((f"contenders[{index}].step_seconds.interval", contender.step_seconds.interval))
    for place, interval in intervals:
        if interval and not interval.low <= interval.estimate <= interval.high:
            yield f"{place} is from {interval.low} to {interval.high}; allowed: around its estimate"


def _find_verdict_faults(result: Result) -> Iterator[str]:
    if all(comparison.verdict == "INVALID" for comparison in result.comparisons):
        return
    complete = verdicts.complete_result(result)
    again = {(comparison.contender, comparison.batch_size): comparison for comparison in complete.comparisons}
    for index, comparison in enumerate(result.comparisons):
        recomputed = again.get((comparison.contender, comparison.batch_size))
        if comparison.claimed_ratio is None:
            continue
        if recomputed and recomputed.verdict == "INVALID":
            yield f"comparisons[{index}].verdict is {comparison.verdict}; allowed: INVALID, for {recomputed.reason}"
        verdict = statistics.judge_ratio(comparison.claimed_ratio, comparison.margin)
        if comparison.rounds < result.spec.least_rounds:
            verdict = "INCONCLUSIVE"
        if verdict != comparison.verdict:
            yield f"comparisons[{index}].verdict is {comparison.verdict}; allowed by its ratio: {verdict}"


def _find_claims_without_agreement(result: Result) -> Iterator[str]:
    failed = {(pair.baseline, pair.contender) for pair in result.agreement.pairs if pair.status == "fail"}
    for index, comparison in enumerate(result.comparisons):
        if (comparison.baseline, comparison.contender) in failed and comparison.verdict != "INVALID":
            yield (
                f"comparisons[{index}].verdict is {comparison.verdict} although the agreement of "
                f"{comparison.contender} with {comparison.baseline} failed; allowed: INVALID"
            )


def _find_gate_faults(result: Result) -> Iterator[str]:
    agreement = result.agreement
    listed = {f"agreement.pairs[{index}].gates": pair.gates for index, pair in enumerate(agreement.pairs)}
    for place, gates in {**listed, "agreement.gates": agreement.gates}.items():
        for index, gate in enumerate(gates):
            named = f"{place}[{index}], {repr(gate.name)},"
            if gate.limit < 0:
                yield f"{named} has the limit {gate.limit}; allowed: 0 or more"
            is_minimum = RULES[gate.name].is_minimum
            value = gate.value
            holds = value is not None and (value >= gate.limit if is_minimum else value <= gate.limit)
            if gate.passed and not holds:
                allowed = f"a value of at {'least' if is_minimum else 'most'} its limit, {gate.limit}"
                yield f"{named} has passed with the value {value}; allowed: {allowed}, or that it failed"


def _find_agreement_faults(result: Result) -> Iterator[str]:
    agreement = result.agreement
    for index, pair in enumerate(agreement.pairs):
        failed = [gate.name for gate in pair.gates if not gate.passed]
        if pair.status == "pass" and failed:
            yield f"agreement.pairs[{index}].status is pass although the gate {repr(failed[0])} failed; allowed: fail"
        if pair.status == "fail" and not failed:
            yield f"agreement.pairs[{index}].status is fail although no gate of it failed; allowed: pass, skipped"
        if agreement.status == "pass" and pair.status != "pass":
            yield f"agreement.status is pass although that of pairs[{index}] is {pair.status}; allowed: that"
    status = verdicts.conclude_agreement(result).status
    if agreement.status != status:
        yield f"agreement.status is {agreement.status}; allowed by its pairs: {status}"


def _find_count_faults(result: Result) -> Iterator[str]:
    rounds, void = result.spec.rounds, [voided.round for voided in result.voided]
    for index, number in enumerate(void):
        if number > rounds or number in void[:index]:
            yield f"voided[{index}].round is {number}; allowed: each of the {rounds} rounds once"
    contenders = {contender.name: contender for contender in result.contenders}
    for index, comparison in enumerate(result.comparisons):
        sides = (contenders[name] for name in (comparison.baseline, comparison.contender))
        baseline, contender = (verdicts.find_medians(result, side, comparison.batch_size) for side in sides)
        count = len(baseline.keys() & contender.keys())
        if comparison.rounds != count:
            yield f"comparisons[{index}].rounds is {comparison.rounds}; allowed by samples and voided: {count}"


def _find_rate_faults(result: Result) -> Iterator[str]:
    for index, contender in enumerate(result.contenders):
        rate, step = contender.images_per_second, contender.step_seconds
        if rate is None:
            continue
        fitting = result.spec.batch_size / step.estimate if step and step.estimate else None
        if fitting is None or not math.isclose(rate, fitting, rel_tol=_TOLERANCE):
            allowed = "null, as it has no step time" if fitting is None else f"{fitting:.6g}, by its step time"
            yield f"contenders[{index}].images_per_second is {rate:.6g}; allowed: {allowed}"


def _find_round_faults(result: Result) -> Iterator[str]:
    spec = result.spec
    if 2 * spec.rounds_requested < spec.rounds:  # a void round is timed again, up to as often as there are rounds
        allowed = f"half of the {spec.rounds} rounds that were timed, or more"
        yield f"spec.rounds_requested is {spec.rounds_requested}; allowed: {allowed}"
    if spec.looks is not None and math.fsum(spec.looks.values()) > 1 - spec.confidence + _TOLERANCE:
        yield f"spec.looks spend an error of {math.fsum(spec.looks.values()):.6g}; allowed: {1 - spec.confidence:.6g}"


def _find_window_faults(result: Result) -> Iterator[str]:
    for index, contender in enumerate(result.contenders):
        step = contender.step_seconds
        if not step:
            continue
        place = f"contenders[{index}].step_seconds.windows"
        if [len(blocks) for blocks in step.windows] != [len(blocks) for blocks in step.samples]:
            yield f"{place} is not one window a sample; allowed: as many rounds and blocks as samples"
        if any(start > end for blocks in step.windows for start, end in blocks):
            yield f"{place} has a window that ends before it starts; allowed: [start, end]"


def _find_telemetry_faults(result: Result) -> Iterator[str]:
    for place, series in _list_gpu_samples(result).items():
        for name, values in series.items():
            if len(values) != len(series.get("seconds", ())):
                yield f"{place}.{name} has not one value a sample; allowed: as many as seconds"
        missing = [name for name in ("seconds", *SERIES) if name not in series]
        if missing and result.telemetry.reason is None:
            yield f"{place} lacks {', '.join(missing)}, and telemetry.reason does not say why"


def _list_gpu_samples(result: Result) -> dict[str, Samples]:
    """Return the samples of every GPU by their place in the file."""
    first = {"telemetry.samples": result.telemetry.samples}
    return first | {f"telemetry.others[{n}].samples": gpu.samples for n, gpu in enumerate(result.telemetry.others)}


def _find_trajectory_faults(result: Result) -> Iterator[str]:
    for name, curves in result.agreement.trajectory.items():
        if len(curves.loss) != len(curves.envelope):
            place = f"agreement.trajectory[{repr(name)}]"
            yield f"{place} has losses and an envelope of unequal lengths; allowed: one a step"


def _find_fractions(result: Result) -> Iterator[str]:
    # A schema takes 64.0 for an integer, but nothing can be repeated 64.0 times.
    spec = result.spec
    counts: dict[str, object] = {
        "spec.batch_size": spec.batch_size,
        "spec.rounds": spec.rounds,
        "spec.seed": spec.seed,
        "spec.epochs": spec.epochs,
    }
    for place, series in _list_gpu_samples(result).items():
        counts |= {f"{place}.clock_reasons[{n}]": bits for n, bits in enumerate(series.get("clock_reasons", ()))}
    for place, value in counts.items():
        if isinstance(value, float):
            yield f"{place} is {value}; allowed: a whole number without a fraction"
