"""Describe the machine while contenders were timed: the GPU's state, other programs, void rounds."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from statistics import median
from typing import Any

from compare.machine.nvml import POWER_CAP
from compare.report.sentences import count_noun, format_percent, make_plain
from compare.results.consistency import SERIES
from compare.results.model import Gpu, Result, Telemetry, Voided
from compare.settings.block_order import list_gpus_of_round

_NOTICEABLE_CORES = 0.05
_BUSY = re.compile(r"kept (\d+\.\d+) cores busy")
_MOST_PROGRAMS = 3


def list_lines(result: Result, *, is_told: bool = False) -> Iterator[str]:
    """Yield lines on missing rounds, the design, the GPU, other programs, outliers, and void rounds.

    `is_told` leaves out the lines that `describe_disturbance` makes superfluous.
    """
    spec, telemetry = result.spec, result.telemetry
    if spec.is_cut_off:
        yield f"the run was interrupted after {spec.rounds} of {spec.rounds_requested} rounds"
    if spec.design != "alternating":
        reason = f" ({spec.design_reason})" if spec.design_reason else ""
        yield f"design of the rounds: {spec.design}{reason}"
    if spec.rounds:
        if spec.device == "cuda":
            yield from _gpu_lines(result)
        if not is_told:
            yield from _other_programs(telemetry, all_void=spec.rounds == len(result.voided))
        if spec.void_limit is not None:
            yield f"a round counts while others keep at most {spec.void_limit:g} cores busy (--void-limit)"
    for comparison in result.comparisons:
        for number in comparison.outliers:
            pair = f"{comparison.contender} against {comparison.baseline}"
            yield f"{pair}: round {number} is far from the others, but it counts"
    if not is_told:
        yield from list_void_rounds(result.voided)


def is_disturbed(result: Result) -> bool:
    """Tell whether a comparison has no verdict because too few rounds are left beside the void ones."""
    count = result.spec.rounds - len(result.voided)
    is_undecided = any(comparison.verdict == "INCONCLUSIVE" for comparison in result.comparisons)
    return is_undecided and bool(result.voided) and count < result.spec.least_rounds


def describe_disturbance(result: Result) -> str | None:
    """Return what disturbed a run without a verdict, what to do, and the step times. None for any other run.

    The times are medians over all rounds, including void ones. They support no claim.
    """
    if not is_disturbed(result):
        return None
    spec = result.spec
    undecided = [comparison for comparison in result.comparisons if comparison.verdict == "INCONCLUSIVE"]
    times = {
        (each.name, series.batch_size): median(time for blocks in series.samples for time in blocks)
        for each in result.contenders
        for series in each.list_series()
    }
    measured = [
        f"{name} took {1e3 * seconds:.4g} ms a {'step' if size is None else f'request of batch {size}'}"
        for (name, size), seconds in times.items()
    ]
    ratios = [
        f"ratio {times[each.contender, each.batch_size] / times[each.baseline, each.batch_size]:.3g} "
        f"for {each.contender}{'' if each.batch_size is None else f' at batch {each.batch_size}'}"
        for each in undecided
        if {(each.contender, each.batch_size), (each.baseline, each.batch_size)} <= times.keys()
    ]
    programs = _name_busiest(result.telemetry)
    who = f" (busiest: {programs})" if programs else ""
    pairs = ", ".join(dict.fromkeys(f"{each.contender} against {each.baseline}" for each in undecided))
    cure = (
        "Stop other programs or use a quieter machine, and run it again"
        if spec.device == "cpu"
        else "Run it again on a cool GPU that no other process uses"
    )
    return (
        f"DISTURBED, no verdict: {len(result.voided)} of {count_noun(spec.rounds, 'round')} are void, because "
        f"{'; '.join(map(_join_reasons, _group(result.voided)))}{who}. So {pairs} is INCONCLUSIVE. {cure}. Over all "
        f"rounds {', '.join(measured)} ({', '.join(ratios)}), which supports no claim"
    )


def list_void_rounds(voided: Sequence[Voided]) -> list[str]:
    """Return a line for each reason, with the rounds that are void for it."""
    return [f"{_name_rounds([each.round for each in group])} void: {_join_reasons(group)}" for group in _group(voided)]


def _group(voided: Sequence[Voided]) -> Collection[Sequence[Voided]]:
    """Return void rounds by their reason. Other numbers of busy cores are no other reason."""
    groups: dict[tuple[str, ...], list[Voided]] = {}
    for void in voided:
        groups.setdefault(tuple(_BUSY.split(void.reason)[::2]), []).append(void)
    return groups.values()


def _name_rounds(rounds: Sequence[int]) -> str:
    """Return `round 3 is`, `rounds 1 and 3 are` or `rounds 1 to 5 are`."""
    first, last = rounds[0], rounds[-1]
    if len(rounds) == 1:
        return f"round {first} is"
    if len(rounds) > 2 and list(rounds) == list(range(first, last + 1)):
        return f"rounds {first} to {last} are"
    return f"rounds {', '.join(map(str, rounds[:-1]))} and {last} are"


def _join_reasons(group: Sequence[Voided]) -> str:
    """Return the reason of a group, with the smallest and the largest number of busy cores."""
    columns = zip(*(_BUSY.findall(each.reason) for each in group), strict=True)
    ranges = [sorted(set(column), key=float) for column in columns]
    texts = iter(" to ".join(dict.fromkeys((cores[0], cores[-1]))) for cores in ranges)
    return _BUSY.sub(lambda _: f"kept {next(texts)} cores busy", group[0].reason)


def _gpu_lines(result: Result) -> Iterator[str]:
    telemetry = result.telemetry
    if telemetry.reason:
        yield f"no telemetry of the GPU: {telemetry.reason}"
        return
    for number, gpu in enumerate(telemetry.gpus):
        if windows := _windows(result, number):
            yield from _state(gpu, windows, f"GPU {number}" if telemetry.others else "GPU")
    if telemetry.left_out:
        yield (
            f"{telemetry.left_out:,} samples between blocks are left out to keep the file small; no void round depends "
            "on them"
        )


def _state(gpu: Gpu, windows: Sequence[Sequence[float]], name: str) -> Iterator[str]:
    seconds = gpu.samples.get("seconds", ())
    timed = [index for index, at in enumerate(seconds) if any(start <= at <= end for start, end in windows)]
    series: dict[str, list[Any]] = {
        key: [gpu.samples[key][index] for index in timed] if key in gpu.samples else [] for key in SERIES
    }
    spreads = [
        _spread("SM clock", series["sm_clock_mhz"], "MHz"),
        _spread("memory clock", series["memory_clock_mhz"], "MHz"),
        _spread("temperature", series["temperature_celsius"], "\N{DEGREE SIGN}C"),
        _spread("power", series["power_watts"], "W"),
    ]
    yield f"{name} while blocks were timed ({len(timed)} samples): {', '.join(spreads)}"
    reasons = [int(bits) for bits in series["clock_reasons"] if bits is not None]
    if capped := sum(bool(bits & POWER_CAP) for bits in reasons):
        yield f"the workload itself reached the power limit in {format_percent(capped / len(reasons))} of these samples"
    if not gpu.lists_processes:
        yield f"NVML does not list this run's processes on the {name}, so it could not show a foreign one either"


def _other_programs(telemetry: Telemetry, *, all_void: bool) -> Iterator[str]:
    loads = {"other programs": telemetry.foreign_cores, "contenders that were not timed": telemetry.idle_cores}
    for who, by_round in () if all_void else loads.items():  # the lines on void rounds say the same
        cores = [value for value in by_round if value is not None]
        if cores and max(cores) > _NOTICEABLE_CORES:
            yield f"{who} kept {median(cores):.2f} cores busy in the median round, {max(cores):.2f} at most"
    if programs := _name_busiest(telemetry):
        yield f"the busiest other program in void rounds: {programs}"


def _name_busiest(telemetry: Telemetry) -> str:
    """Return the programs that worked most in void rounds, the most frequent first, empty if none is known."""
    counts = Counter(make_plain(name) for name in telemetry.busiest if name is not None)
    return ", ".join(f"{name} in {count_noun(count, 'round')}" for name, count in counts.most_common(_MOST_PROGRAMS))


def _windows(result: Result, number: int) -> list[Sequence[float]]:
    """Return when blocks were timed in the rounds that used a GPU."""
    spec, windows = result.spec, list[Sequence[float]]()
    for contender in result.contenders:
        for index, blocks in enumerate(contender.step_seconds.windows if contender.step_seconds else ()):
            gpus = list_gpus_of_round(index, spec.devices, spec.rotation)
            windows += blocks if gpus is None or number in gpus else ()
    return windows


def _spread(name: str, values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"{name} not recorded"
    low, high = f"{min(known):,.0f}", f"{max(known):,.0f}"
    return f"{name} {low} {unit}" if low == high else f"{name} {low} to {high} {unit}"
