"""What went on beside the contenders while they were timed, in words: the GPU's state, and other programs."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from compare.machine.nvml import POWER_CAP
from compare.report.sentences import percent
from compare.results import verdicts
from compare.results.consistency import SERIES
from compare.settings.block_order import find_stored_gpus

_NOTICEABLE_CORES = 0.05


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line on rounds that are missing, on their design, on the GPU, on other programs, and on each outlier."""
    spec, telemetry = result["spec"], result.get("telemetry")
    if verdicts.is_cut_off(result):
        yield f"the run was interrupted after {spec['rounds']} of {verdicts.rounds_requested(result)} rounds"
    if spec.get("design", "alternating") != "alternating":
        reason = f" ({spec['design_reason']})" if spec.get("design_reason") else ""
        yield f"design of the rounds: {spec['design']}{reason}"
    if telemetry and spec["rounds"]:
        if spec["device"] == "cuda":
            yield from _gpu(result, telemetry)
        yield from _others(telemetry)
    for comparison in result["comparisons"]:
        for number in comparison.get("outliers", ()):
            pair = f"{comparison['contender']} against {comparison['baseline']}"
            yield f"{pair}: round {number} is far from the others; it counts"


def voids(result: Mapping[str, Any]) -> list[str]:
    """Return one line for each void round, with its reason."""
    return [f"round {each['round']} is void: {each['reason']}" for each in result["voided"]]


def _gpu(result: Mapping[str, Any], telemetry: Mapping[str, Any]) -> Iterator[str]:
    if telemetry["reason"]:
        yield f"no telemetry of the GPU: {telemetry['reason']}"
        return
    gpus = [telemetry, *telemetry.get("others", ())]
    for number, gpu in enumerate(gpus):
        if windows := _windows(result, number):
            yield from _state(gpu, windows, f"GPU {number}" if len(gpus) > 1 else "GPU")
    if count := telemetry.get("left_out"):
        yield f"{count:,} samples between blocks are left out, for the file's size; no void round depends on them"


def _state(gpu: Mapping[str, Any], windows: Sequence[Sequence[float]], name: str) -> Iterator[str]:
    samples: Mapping[str, Sequence[Any]] = gpu["samples"]
    seconds = samples.get("seconds", ())
    timed = [index for index, at in enumerate(seconds) if any(start <= at <= end for start, end in windows)]
    series = {name: [samples[name][index] for index in timed] if name in samples else [] for name in SERIES}
    parts = [
        _spread("SM clock", series["sm_clock_mhz"], "MHz"),
        _spread("memory clock", series["memory_clock_mhz"], "MHz"),
        _spread("temperature", series["temperature_celsius"], "\N{DEGREE SIGN}C"),
        _spread("power", series["power_watts"], "W"),
    ]
    yield f"{name} while blocks were timed ({len(timed)} samples): {', '.join(parts)}"
    reasons = [int(bits) for bits in series["clock_reasons"] if bits is not None]
    if capped := sum(bool(bits & POWER_CAP) for bits in reasons):
        yield f"power was capped in {percent(capped / len(reasons))} of them, by the workload itself"
    if not gpu["lists_processes"]:
        yield f"NVML does not list this run's processes on the {name}, so that a foreign one could not have been found"


def _others(telemetry: Mapping[str, Any]) -> Iterator[str]:
    for who, name in (("other programs", "foreign_cores"), ("contenders that were not timed", "idle_cores")):
        cores = [value for value in telemetry.get(name, ()) if value is not None]
        if cores and max(cores) > _NOTICEABLE_CORES:
            yield f"{who} kept {median(cores):.2f} cores busy in the median round, {max(cores):.2f} at most"


def _windows(result: Mapping[str, Any], number: int) -> list[Sequence[float]]:
    """Return when blocks were timed in the rounds that used a GPU."""
    found = list[Sequence[float]]()
    for step in (each["step_seconds"] for each in result["contenders"] if each["step_seconds"]):
        for index, blocks in enumerate(step.get("windows", ())):
            gpus = find_stored_gpus(result["spec"], index)
            found += blocks if gpus is None or number in gpus else ()
    return found


def _spread(name: str, values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"{name} not told"
    low, high = f"{min(known):,.0f}", f"{max(known):,.0f}"
    return f"{name} {low} {unit}" if low == high else f"{name} {low} to {high} {unit}"
