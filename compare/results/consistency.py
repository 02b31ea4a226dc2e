"""What must hold in a result between its parts, and a JSON schema cannot say: pure functions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from reprlib import repr
from typing import Any

from compare.agreement.gates import RULES
from compare.base import statistics
from compare.base.interface import Refused
from compare.results import verdicts

Result = Mapping[str, Any]

SERIES = ("sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "power_watts", "clock_reasons")
"""Telemetry that reports show beside the samples' `seconds`."""

_TOLERANCE = 1e-9  # relative: a reader elsewhere may round a quotient's last digit


def check(result: Result) -> None:
    """Check that the parts of a result, valid by the schema, do not contradict each other.

    Raises:
        Refused: with the path of the first contradiction, and what is allowed there.
    """
    for find in (_names, _ratios, _claims_without_agreement, _rounds, _windows, _telemetry, _trajectories, _fractions):
        for fault in find(result):
            raise Refused(fault)


def check_verdicts(result: Result) -> None:
    """Check that verdicts, agreement and images/s are what their figures give, as `samestep verify` does for itself.

    Raises:
        Refused: with the first that is not.
    """
    for find in (_gates, _agreement, _counted, _verdicts, _rates):
        for fault in find(result):
            raise Refused(fault)


def _names(result: Result) -> Iterator[str]:
    names = [contender["name"] for contender in result["contenders"]]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"contenders[{index}].name is {repr(name)} again; allowed: each name once"
    for index, comparison in enumerate(result["comparisons"]):
        for side in ("baseline", "contender"):
            if comparison[side] not in names:
                yield f"comparisons[{index}].{side} is {repr(comparison[side])}; allowed: a contender's name"
    for place, listed in (("comparisons", result["comparisons"]), ("agreement.pairs", result["agreement"]["pairs"])):
        pairs = [(each["baseline"], each["contender"]) for each in listed]
        for index, (baseline, contender) in enumerate(pairs):
            if (baseline, contender) in pairs[:index]:
                what = f"{repr(contender)} against {repr(baseline)}"
                yield f"{place}[{index}] is of {what} again; allowed: each pair once"


def _ratios(result: Result) -> Iterator[str]:
    intervals = [(f"comparisons[{index}].ratio", each["ratio"]) for index, each in enumerate(result["comparisons"])]
    for index, each in enumerate(result["contenders"]):
        if each["step_seconds"]:
            intervals.append((f"contenders[{index}].step_seconds.interval", each["step_seconds"]["interval"]))
    for place, interval in intervals:
        if interval and not interval["low"] <= interval["estimate"] <= interval["high"]:
            yield f"{place} is from {interval['low']} to {interval['high']}; allowed: around its estimate"


def _verdicts(result: Result) -> Iterator[str]:
    if all(comparison["verdict"] == "INVALID" for comparison in result["comparisons"]):
        return
    again = {each["contender"]: each for each in verdicts.completed(result)["comparisons"]}
    for index, comparison in enumerate(result["comparisons"]):
        found = again.get(comparison["contender"])
        if comparison["verdict"] == "INVALID" or comparison["ratio"] is None:
            continue
        if found and found["verdict"] == "INVALID":
            yield f"comparisons[{index}].verdict is {comparison['verdict']}; allowed: INVALID, for {found['reason']}"
        keys = ("estimate", "low", "high", "confidence")
        ratio = statistics.Ratio(*(comparison["ratio"][key] for key in keys))
        verdict = statistics.verdict(ratio, comparison["margin"])
        if verdict != comparison["verdict"]:
            yield f"comparisons[{index}].verdict is {comparison['verdict']}; allowed by its ratio: {verdict}"


def _claims_without_agreement(result: Result) -> Iterator[str]:
    pairs = result["agreement"]["pairs"]
    failed = {(pair["baseline"], pair["contender"]) for pair in pairs if pair["status"] == "fail"}
    for index, comparison in enumerate(result["comparisons"]):
        if (comparison["baseline"], comparison["contender"]) in failed and comparison["verdict"] != "INVALID":
            yield (
                f"comparisons[{index}].verdict is {comparison['verdict']} although the agreement of "
                f"{comparison['contender']} with {comparison['baseline']} failed; allowed: INVALID"
            )


def _gates(result: Result) -> Iterator[str]:
    agreement = result["agreement"]
    listed = {f"agreement.pairs[{index}].gates": pair["gates"] for index, pair in enumerate(agreement["pairs"])}
    for place, gates in {**listed, "agreement.gates": agreement["gates"]}.items():
        for index, gate in enumerate(gates):
            value, limit = gate["value"], gate["limit"]
            what = f"{place}[{index}], {repr(gate['name'])},"
            if limit < 0:
                yield f"{what} has the limit {limit}; allowed: 0 or more"
            least = RULES[gate["name"]].is_minimum
            kept = value is not None and (value >= limit if least else value <= limit)
            if gate["passed"] and not kept:
                allowed = f"a value of at {'least' if least else 'most'} its limit, {limit}"
                yield f"{what} has passed with the value {value}; allowed: {allowed}, or that it failed"


def _agreement(result: Result) -> Iterator[str]:
    agreement = result["agreement"]
    for index, pair in enumerate(agreement["pairs"]):
        failed = [gate["name"] for gate in pair["gates"] if not gate["passed"]]
        if pair["status"] == "pass" and failed:
            yield f"agreement.pairs[{index}].status is pass although the gate {repr(failed[0])} failed; allowed: fail"
        if pair["status"] == "fail" and not failed:
            yield f"agreement.pairs[{index}].status is fail although no gate of it failed; allowed: pass, skipped"
        if agreement["status"] == "pass" and pair["status"] != "pass":
            yield f"agreement.status is pass although that of pairs[{index}] is {pair['status']}; allowed: that"
    status = verdicts.agreement_state(result)["status"]
    if agreement["status"] != status:
        yield f"agreement.status is {agreement['status']}; allowed by its pairs: {status}"


def _counted(result: Result) -> Iterator[str]:
    rounds, void = result["spec"]["rounds"], [each["round"] for each in result["voided"]]
    for index, number in enumerate(void):
        if number > rounds or number in void[:index]:
            yield f"voided[{index}].round is {number}; allowed: each of the {rounds} rounds once"
    medians = {each["name"]: verdicts.medians(result, each) for each in result["contenders"]}
    for index, comparison in enumerate(result["comparisons"]):
        count = len(medians[comparison["baseline"]].keys() & medians[comparison["contender"]].keys())
        if comparison["rounds"] != count:
            yield f"comparisons[{index}].rounds is {comparison['rounds']}; allowed by samples and voided: {count}"


def _rates(result: Result) -> Iterator[str]:
    batch = result["spec"]["batch_size"]
    for index, contender in enumerate(result["contenders"]):
        rate, step = contender["images_per_second"], contender["step_seconds"]
        if rate is None:
            continue
        # samestep first took it by the median of all blocks.
        fitting = [batch / each for each in (verdicts.step_seconds(contender), step and step["median"]) if each]
        if not any(math.isclose(rate, each, rel_tol=_TOLERANCE) for each in fitting):
            allowed = f"{fitting[0]:.6g}, by its step time" if fitting else "null, as it has no step time"
            yield f"contenders[{index}].images_per_second is {rate:.6g}; allowed: {allowed}"


def _rounds(result: Result) -> Iterator[str]:
    rounds, requested = result["spec"]["rounds"], verdicts.rounds_requested(result)
    if requested < rounds:
        yield f"spec.rounds_requested is {requested}; allowed: the {rounds} rounds that were timed, or more"


def _windows(result: Result) -> Iterator[str]:
    for index, contender in enumerate(result["contenders"]):
        step = contender["step_seconds"]
        if not step or "windows" not in step:
            continue
        place = f"contenders[{index}].step_seconds.windows"
        if [len(blocks) for blocks in step["windows"]] != [len(blocks) for blocks in step["samples"]]:
            yield f"{place} is not one window a sample; allowed: as many rounds and blocks as samples"
        if any(start > end for blocks in step["windows"] for start, end in blocks):
            yield f"{place} has a window that ends before it starts; allowed: [start, end]"


def _telemetry(result: Result) -> Iterator[str]:
    telemetry: Mapping[str, Any] = result.get("telemetry", {"samples": {}})
    for place, series in _gpus(result).items():
        for name, values in series.items():
            if len(values) != len(series.get("seconds", ())):
                yield f"{place}.{name} has not one value a sample; allowed: as many as seconds"
        missing = [name for name in ("seconds", *SERIES) if name not in series]
        if missing and telemetry.get("reason", "absent") is None:
            yield f"{place} lacks {', '.join(missing)}, and telemetry.reason does not say why"


def _gpus(result: Result) -> dict[str, Mapping[str, Any]]:
    """Return the samples of every GPU by their place."""
    telemetry: Mapping[str, Any] = result.get("telemetry", {"samples": {}})
    others: Sequence[Mapping[str, Any]] = telemetry.get("others", ())
    first = {"telemetry.samples": telemetry["samples"]}
    return first | {f"telemetry.others[{index}].samples": each["samples"] for index, each in enumerate(others)}


def _trajectories(result: Result) -> Iterator[str]:
    trajectory: Mapping[str, Any] = result["agreement"].get("trajectory", {})
    for name, each in trajectory.items():
        if len(each["loss"]) != len(each["envelope"]):
            place = f"agreement.trajectory[{repr(name)}]"
            yield f"{place} has losses and an envelope of unequal lengths; allowed: one a step"


def _fractions(result: Result) -> Iterator[str]:
    # A schema takes 64.0 for an integer, but nothing can be repeated 64.0 times.
    counts = {f"spec.{key}": result["spec"][key] for key in ("batch_size", "rounds", "seed", "epochs")}
    for place, series in _gpus(result).items():
        bits = series.get("clock_reasons", ())
        counts |= {f"{place}.clock_reasons[{index}]": each for index, each in enumerate(bits)}
    for place, value in counts.items():
        if isinstance(value, float):
            yield f"{place} is {value}; allowed: a whole number without a fraction"
