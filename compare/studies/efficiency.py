"""Compute from the runs of a scaling how well each contender uses several devices. Pure functions.

In weak scaling every device has the same number of images, whatever the number of devices (Gustafson, "Reevaluating
Amdahl's law", CACM 31(5), 1988). In strong scaling all devices together have the same number (Amdahl, AFIPS Spring
Joint Computer Conference 1967). Efficiency is the same in both: images per second on N devices, over the images per
second on the fewest devices times the growth in devices. At 1, a further device is worth as much as one of the
fewest. Values above 1 are possible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from compare.base.knobs import PARALLEL_WORDS
from compare.base.statistics import Ratio, estimate_independent_ratio
from compare.results import verdicts
from compare.results.model import Result
from compare.studies.scaling_model import Entry, Run, Scaling

_TOLERANCE = 1e-9  # relative, for another machine may round a logarithm's last digits differently


def compute_efficiency(fewest: Sequence[float], more: Sequence[float], worth: float, confidence: float = 0.95) -> Ratio:
    """Return the efficiency on more devices from two independent samples of step times.

    It is `worth` times the ratio of step times, fewest over more. The interval is Welch's over rounds of ln(time)
    (`compare.base.statistics.estimate_independent_ratio`), because the rounds of the two runs are not paired and may
    spread differently.

    Args:
        fewest: [rounds] median block time of each round on the fewest devices, seconds per step.
        more: [rounds] the same on more devices.
        worth: growth of the images per step over growth of the devices: 1 in weak scaling, fewest / more devices in
            strong scaling.
        confidence: coverage of the interval, between 0 and 1.

    Raises:
        ValueError: as `independent_ratio`, and if `worth` is not above 0.
    """
    if not worth > 0:
        raise ValueError(f"worth is {worth}; allowed: above 0")
    ratio = estimate_independent_ratio(more, fewest, confidence)
    return Ratio(worth * ratio.estimate, worth * ratio.low, worth * ratio.high, confidence)


def make_entries(runs: Sequence[Result], ways: Sequence[str], mode: str) -> tuple[Entry, ...]:
    """Return an entry for each contender and number of devices.

    Args:
        runs: results of the same contenders on more and more devices.
        ways: the value of the knob `parallel` of each contender.
        mode: one of `compare.studies.scaling_model.MODES`.
    """
    completed: list[Entry] = []
    for index, way in enumerate(ways):
        row = [_build_entry(run, index, way, mode) for run in runs]
        voids = [run.void_rounds for run in runs]  # they differ from run to run
        completed += [_complete(entry, row[0], voids[0], void) for entry, void in zip(row, voids, strict=True)]
    return tuple(completed)


def find_faults(scaling: Scaling) -> Iterator[str]:
    """Yield the contradictions between the parts of a scaling, each with its path and the allowed value."""
    spec, runs, listed = scaling.spec, scaling.runs, scaling.scaling
    if tuple(run.devices for run in runs) != spec.devices:
        yield "runs are not those of spec.devices; allowed: one for each, in order"
        return
    if spec.devices_requested[: len(runs)] != spec.devices:
        yield f"spec.devices_requested is {list(spec.devices_requested)}; allowed: spec.devices, and others after them"
        return
    expected = [(name, count) for name in spec.contenders for count in spec.devices]
    if [(entry.contender, entry.devices) for entry in listed] != expected:
        yield "scaling is not of spec.contenders and spec.devices; allowed: one object for each of both, in order"
        return
    for index, entry in enumerate(listed):
        again = _derive(scaling, index)
        for key in ("parallel", "mode", "batch_size", "efficiency", "images_per_second"):
            stored, derived = getattr(entry, key), getattr(again, key)
            if not _is_same(stored, derived):
                stored, derived = (asdict(each) if isinstance(each, Ratio) else each for each in (stored, derived))
                yield f"scaling[{index}].{key} is {stored}; allowed by what else the file says: {derived}"


def _derive(scaling: Scaling, index: int) -> Entry:
    """Return an entry with everything that follows from the spec, the contender's name and the step times."""
    spec, runs, entry = scaling.spec, scaling.runs, scaling.scaling[index]
    position = index % len(runs)
    run, fewest = runs[position], scaling.scaling[index - position]
    size = spec.total_batch(entry.devices)
    return replace(
        _complete(entry, fewest, runs[0].void_rounds, run.void_rounds),
        parallel=_way_in_name(entry.contender) or fewest.parallel,
        mode=spec.mode,
        batch_size=size,
        images_per_second=_images_per_second(entry, run, size, spec.confidence),
    )


def _images_per_second(entry: Entry, run: Run, batch_size: int, confidence: float) -> float | None:
    step = entry.step_seconds
    if step is None:
        return None
    estimate = verdicts.summarise_steps(
        step.samples, step.windows, step.steps_per_block, run.void_rounds, confidence
    ).estimate
    return batch_size / estimate if estimate else None


def _build_entry(run: Result, index: int, way: str, mode: str) -> Entry:
    contender, spec = run.contenders[index], run.spec
    memory, communication = contender.memory, contender.communication
    live_peak = memory.live_peak_bytes if memory else None
    exposed = communication.exposed_seconds if communication else None
    absent: dict[str, str] = {}
    if exposed is None:
        absent["communication_seconds"] = (communication and communication.reason) or "not measured"
    if live_peak is None:
        reason = memory.absent.get("live_peak_bytes") if memory else None
        absent["memory_per_device_bytes"] = reason or "memory was not measured"
    return Entry(
        contender=contender.name,
        parallel=way,
        devices=spec.devices,
        mode=mode,
        batch_size=spec.batch_size,
        status=contender.status,
        reason=contender.reason,
        unproven=contender.unproven,
        agreement=_worst_agreement(run, contender.name),
        kernel_search=contender.kernel_search,
        images_per_second=contender.images_per_second,
        efficiency=None,
        step_seconds=contender.step_seconds,
        memory_per_device_bytes=live_peak,
        communication_seconds=exposed,
        absent=absent,
    )


def _way_in_name(name: str) -> str | None:
    """Return the value of the knob `parallel` in a contender's name, None if the name has none."""
    words = [word.removeprefix("parallel=") for word in name.partition("#")[0].partition(":")[2].split("+")]
    return next((word for word in words if word in PARALLEL_WORDS), None)


def _worst_agreement(run: Result, name: str) -> str:
    """Return `pass` if a contender agrees with another one, `skipped` if no certificate of it was completed.

    The baseline has a part in every certificate. One partner that fails does not decide for the others.
    """
    statuses = {pair.status for pair in run.agreement.pairs if name in (pair.baseline, pair.contender)}
    return next((status for status in ("pass", "fail") if status in statuses), "skipped")


def _complete(entry: Entry, fewest: Entry, first_void: frozenset[int], void: frozenset[int]) -> Entry:
    """Return an entry with its efficiency, or with the reason for its absence."""
    absent = {name: reason for name, reason in entry.absent.items() if name != "efficiency"}
    reason = _explain_absent(entry, void) or _explain_absent(fewest, first_void)
    if reason is not None or entry.step_seconds is None or entry.step_seconds.interval is None:
        return replace(entry, efficiency=None, absent={**absent, "efficiency": reason or "no step time"})
    level = entry.step_seconds.interval.confidence
    if entry.devices == fewest.devices:
        ratio = Ratio(1.0, 1.0, 1.0, level)  # by definition
    else:
        worth = entry.batch_size / fewest.batch_size * fewest.devices / entry.devices
        before, after = (
            list(verdicts.find_round_medians(side.samples, rounds).values())
            for side, rounds in ((fewest, first_void), (entry, void))
        )
        ratio = compute_efficiency(before, after, worth, level)
    return replace(entry, efficiency=ratio, absent=absent)


def _explain_absent(entry: Entry, void: frozenset[int]) -> str | None:
    """Return why nothing may be said about an entry's speed, None if it may."""
    where = f"on {entry.devices} device{'' if entry.devices == 1 else 's'}"
    if entry.status != "ok":
        return f"{entry.status} {where}"
    if entry.unproven:
        return f"{where} it {verdicts.UNPROVEN}: {entry.unproven}"
    if entry.agreement != "pass":
        return f"no {'agreement' if entry.agreement == 'fail' else 'certificate'} {where}"
    if len(verdicts.find_round_medians(entry.samples, void)) < verdicts.LEAST_ROUNDS:
        return f"too few rounds {where} that are not void"
    return None


def _is_same(stored: object, derived: object) -> bool:
    if isinstance(stored, Ratio) and isinstance(derived, Ratio):
        return all(_is_same(value, asdict(derived)[name]) for name, value in asdict(stored).items())
    if isinstance(stored, (int, float)) and isinstance(derived, (int, float)):
        return abs(stored - derived) <= _TOLERANCE * abs(derived)
    return stored == derived
