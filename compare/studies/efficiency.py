"""What follows from the runs of a scaling: how much of the devices each contender makes use of. Pure functions.

In weak scaling every device has the same number of images whatever their number (Gustafson, "Reevaluating Amdahl's
law", CACM 31(5), 1988), in strong scaling all devices together have (Amdahl, AFIPS Spring Joint Computer Conference
1967). Efficiency is the same in both: images per second on N devices, over as many times those on the fewest as there
are more devices. It is 1 where a device more is worth as much as one of the fewest, and may be above.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, cast

from compare.base.knobs import PARALLEL_WORDS
from compare.base.statistics import Ratio, independent_ratio
from compare.results import verdicts

Object = Mapping[str, Any]

MODES = ("weak", "strong")
_TOLERANCE = 1e-9  # relative; another machine's logarithms may differ in the last digits


def efficiency(fewest: Sequence[float], more: Sequence[float], worth: float, confidence: float = 0.95) -> Ratio:
    """Return the efficiency on more devices, of two independent samples of step times.

    It is `worth` times the ratio of step times, fewest over more, with Welch's interval over rounds of ln(time)
    (`compare.base.statistics.independent_ratio`), for the rounds of the two counts are neither paired nor spread alike.

    Args:
        fewest: [rounds] median block time of each round on the fewest devices, seconds per step.
        more: [rounds] the same on more devices.
        worth: how many times as many images a step has on more devices, over how many times as many devices: 1 in weak
            scaling, fewest devices / more devices in strong.
        confidence: coverage of the interval, between 0 and 1.

    Raises:
        ValueError: as `independent_ratio`, and for a worth that is not above 0.
    """
    if not worth > 0:
        raise ValueError(f"worth is {worth}; allowed: above 0")
    ratio = independent_ratio(more, fewest, confidence)
    return Ratio(worth * ratio.estimate, worth * ratio.low, worth * ratio.high, confidence)


def entries(runs: Sequence[Object], ways: Sequence[str], mode: str) -> list[dict[str, Any]]:
    """Return `scaling[]` of a result: an object for each contender and number of devices.

    Args:
        runs: result objects (`compare.results.result_file`) of the same contenders on more and more devices.
        ways: the value of the knob `parallel` of each contender.
        mode: one of `MODES`.
    """
    found = [
        [_entry(run, index, way, mode) for run in runs]  # the rounds that are void differ from run to run
        for index, way in enumerate(ways)
    ]
    return [_completed(each, row[0], runs[0], run) for row in found for each, run in zip(row, runs, strict=True)]


def faults(result: Object) -> Iterator[str]:
    """Yield what contradicts itself in the object of a scaling, valid by its schema: its rows, and their efficiencies.

    Each fault is named with its path and what is allowed there.
    """
    spec, runs, listed = result["spec"], result["runs"], result["scaling"]
    expected = [(name, count) for name in spec["contenders"] for count in spec["devices"]]
    if [run["devices"] for run in runs] != spec["devices"]:
        yield "runs are not those of spec.devices; allowed: one for each, in order"
        return
    requested = spec.get("devices_requested", spec["devices"])
    if requested[: len(runs)] != spec["devices"]:
        yield f"spec.devices_requested is {requested}; allowed: spec.devices, and others after them"
        return
    if [(each["contender"], each["devices"]) for each in listed] != expected:
        yield "scaling is not of spec.contenders and spec.devices; allowed: one object for each of both, in order"
        return
    for index, each in enumerate(listed):
        for key, again in _following(result, index).items():
            if not _same(each[key], again):
                yield f"scaling[{index}].{key} is {each[key]}; allowed by what else the file says: {again}"


def _following(result: Object, index: int) -> dict[str, Any]:
    """Return what of a scaling's row follows from its spec, the contender's name and the step times."""
    spec, runs, entry = result["spec"], result["runs"], result["scaling"][index]
    position = index % len(runs)
    run, fewest = runs[position], result["scaling"][index - position]
    size = spec["batch_size"] * (entry["devices"] if spec["mode"] == "weak" else 1)
    void = {each["round"] for each in run["voided"]}
    estimate = _estimate(entry["step_seconds"], void, spec["confidence"])
    return {
        "parallel": _named_way(entry["contender"]) or fewest["parallel"],
        "mode": spec["mode"],
        "batch_size": size,
        "efficiency": _completed(entry, fewest, runs[0], run)["efficiency"],
        "images_per_second": size / estimate if estimate else None,
    }


def _entry(run: Object, index: int, way: str, mode: str) -> dict[str, Any]:
    contender, spec = run["contenders"][index], run["spec"]
    memory: Object = contender["memory"] or {"live_peak_bytes": None, "absent": {}}
    communication: Object = contender.get("communication") or {"exposed_seconds": None, "reason": "not measured"}
    absent = {}
    if communication["exposed_seconds"] is None:
        absent["communication_seconds"] = communication["reason"]
    if memory["live_peak_bytes"] is None:
        absent["memory_per_device_bytes"] = memory["absent"].get("live_peak_bytes", "memory was not measured")
    return {
        "contender": contender["name"],
        "parallel": way,
        "devices": spec["devices"],
        "mode": mode,
        "batch_size": spec["batch_size"],
        "status": contender["status"],
        "reason": contender["reason"],
        "unproven": contender["unproven"],
        "agreement": _agreement(run, contender["name"]),
        "kernel_search": contender.get("kernel_search"),
        "images_per_second": contender["images_per_second"],
        "efficiency": None,
        "step_seconds": contender["step_seconds"],
        "memory_per_device_bytes": memory["live_peak_bytes"],
        "communication_seconds": communication["exposed_seconds"],
        "absent": absent,
    }


def _named_way(name: str) -> str | None:
    """Return the way to use several devices that a contender's name has, None where it has none."""
    words = [each.removeprefix("parallel=") for each in name.partition("#")[0].partition(":")[2].split("+")]
    return next((word for word in words if word in PARALLEL_WORDS), None)


def _agreement(run: Object, name: str) -> str:
    """Return whether a contender agrees with another one, `skipped` where no certificate has come to an answer.

    The baseline has a part in every certificate; one partner that differs from it does not speak for the others.
    """
    found = {pair["status"] for pair in run["agreement"]["pairs"] if name in (pair["baseline"], pair["contender"])}
    return next((status for status in ("pass", "fail") if status in found), "skipped")


def _completed(entry: Object, fewest: Object, first_run: Object, run: Object) -> dict[str, Any]:
    """Return an entry with its efficiency, or the reason why there is none."""
    absent = {name: reason for name, reason in entry["absent"].items() if name != "efficiency"}
    reason = next(filter(None, (_lacking(entry, run), _lacking(fewest, first_run))), None)
    if reason is not None:
        return {**entry, "efficiency": None, "absent": {**absent, "efficiency": reason}}
    level = entry["step_seconds"]["interval"]["confidence"]
    if entry["devices"] == fewest["devices"]:
        found = Ratio(1.0, 1.0, 1.0, level)  # by definition
    else:
        worth = entry["batch_size"] / fewest["batch_size"] * fewest["devices"] / entry["devices"]
        before, after = _medians(first_run, fewest), _medians(run, entry)
        found = efficiency(list(before.values()), list(after.values()), worth, level)
    return {**entry, "efficiency": asdict(found), "absent": absent}


def _medians(run: Object, entry: Object) -> dict[int, float]:
    void, step = {each["round"] - 1 for each in run["voided"]}, entry["step_seconds"]
    return {index: median(blocks) for index, blocks in enumerate(step["samples"] if step else ()) if index not in void}


def _estimate(step: Object | None, void: Collection[int], confidence: float) -> float | None:
    if not step:
        return None
    return verdicts.step_times(step["samples"], step["windows"], step["steps_per_block"], void, confidence).estimate


def _lacking(entry: Object, run: Object) -> str | None:
    """Return why nothing may be said about an entry's speed, None where it may."""
    where = f"on {entry['devices']} device{'' if entry['devices'] == 1 else 's'}"
    if entry["status"] != "ok":
        return f"{entry['status']} {where}"
    if entry["unproven"]:
        return f"{where} it {verdicts.UNPROVEN}: {entry['unproven']}"
    if entry["agreement"] != "pass":
        return f"no {'agreement' if entry['agreement'] == 'fail' else 'certificate'} {where}"
    if len(_medians(run, entry)) < verdicts.LEAST_ROUNDS:
        return f"too few rounds {where} that are not void"
    return None


def _same(stored: Any, again: Any) -> bool:
    if isinstance(stored, (int, float)) and isinstance(again, (int, float)):
        return abs(stored - again) <= _TOLERANCE * abs(again)
    if isinstance(stored, Mapping) and isinstance(again, Mapping):
        return all(_same(cast(Object, stored)[key], value) for key, value in cast(Object, again).items())
    return stored == again
