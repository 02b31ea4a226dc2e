"""Print the report of `samestep scale`."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from compare.base import communication
from compare.machine.memory import DEFINITIONS
from compare.report import columns
from compare.report.measurements import ONE_SEARCH, format_mebibytes, has_one_search
from compare.report.sentences import (
    DASH,
    count_noun,
    describe_comparison,
    format_percent,
    format_ratio_figures,
    make_plain,
    name_device,
)
from compare.settings import block_order
from compare.studies.scaling_model import WEAK, Entry, Scaling, ScalingSpec

_TITLES = ("devices", "images/s", "efficiency", "MiB", "exposed", "agrees")  # together within 80 columns
_FIGURES = {"communication_seconds": "exposed communication", "memory_per_device_bytes": "memory per device"}


def render(scaling: Scaling, console: Console) -> None:
    """Print a table, missing figures and their reasons, the comparison on each number of devices, and definitions."""

    def print_line(text: str) -> None:
        console.print(Text(make_plain(text)))

    print_line(make_heading(scaling))
    console.print()
    _print_table(scaling, console)
    for part in (list(list_remarks(scaling)), list(list_claims(scaling)), list(list_definitions(scaling))):
        console.print()
        for line in part:
            print_line(line)


def make_heading(scaling: Scaling) -> str:
    """Return the workload, the device, the batch and the rounds in words."""
    spec = scaling.spec
    return (
        f"{spec.mode} scaling of {spec.workload} on {describe_device(scaling)} in {spec.precision}: "
        f"{describe_batch(spec)}, batch norm {spec.batch_norm}, "
        f"{count_noun(spec.rounds, 'round')} on each number of devices, seed {spec.seed}"
    )


def describe_device(scaling: Scaling) -> str:
    """Return the device in words, with its own name if that was recorded."""
    return name_device(scaling.spec.device, scaling.environment)


def describe_batch(spec: ScalingSpec) -> str:
    """Return the images per step in words."""
    return f"batch {spec.batch_size}" + (" for each device" if spec.mode == WEAK else " over all devices")


def define_efficiency(scaling: Scaling) -> str:
    """Return the definition of efficiency for this scaling's fewest devices."""
    fewest = scaling.spec.devices[0]
    times = "N times" if fewest == 1 else f"N/{fewest} times"
    return f"images/s on N devices over {times} those on {fewest}"


def _print_table(scaling: Scaling, console: Console) -> None:
    rows: list[tuple[str, ...]] = []
    for entry in scaling.scaling:
        if entry.devices == scaling.spec.devices[0]:
            rows.append((make_plain(entry.contender),))
        rows.append((f"  {entry.devices}", *make_cells(entry)))
    table = columns.make_table(_TITLES, rows, console.width, right=range(1, len(_TITLES)), tight=True)
    if table:
        console.print(table)
        return
    for entry in scaling.scaling:
        title = f"{make_plain(entry.contender)} on {count_noun(entry.devices, 'device')}"
        columns.stack(title, zip(_TITLES[1:], make_cells(entry), strict=True), console)


def make_cells(entry: Entry) -> tuple[str, str, str, str, str]:
    """Return images/s, efficiency, MiB, exposed milliseconds and agreement, with a dash for a missing figure."""
    speed, memory, exposed = entry.images_per_second, entry.memory_per_device_bytes, entry.communication_seconds
    return (
        DASH if speed is None else f"{speed:,.0f}",
        describe_efficiency(entry),
        DASH if memory is None else format_mebibytes(memory),
        DASH if exposed is None else f"{1e3 * exposed:.3f}",
        entry.agreement,
    )


def describe_efficiency(entry: Entry) -> str:
    """Return the efficiency of an entry with its interval, or a dash."""
    ratio = entry.efficiency
    if ratio is None:
        return DASH
    if ratio.low == ratio.high == 1:
        return "1"  # on the fewest devices, by definition
    estimate, low, high = format_ratio_figures(ratio)
    return f"{estimate} ({low}{DASH}{high})"


def list_remarks(scaling: Scaling) -> Iterator[str]:
    """Yield interruptions, failures, void rounds, uneven rounds, and the reasons for missing figures."""
    yield from _interruptions(scaling)
    for entry in scaling.scaling:
        if entry.status != "ok":
            yield f"{entry.contender} on {count_noun(entry.devices, 'device')}: {entry.status}, {entry.reason}"
    for run in scaling.runs:
        where, agreement = f"on {count_noun(run.devices, 'device')}", run.agreement
        if agreement.status == "fail":
            yield f"agreement {where}: fail, first mismatch {agreement.first_mismatch or 'not known'}"
        elif agreement.status == "skipped":
            yield f"agreement {where}: skipped, {agreement.reason}"
        if run.voided:
            reasons = "; ".join(dict.fromkeys(voided.reason for voided in run.voided))
            yield f"{count_noun(len(run.voided), 'round')} void {where}: {reasons}"
    yield from _uneven_rounds(scaling)
    places: dict[str, dict[str, list[int]]] = {}
    for entry in scaling.scaling:
        lines = [ONE_SEARCH] if has_one_search(entry.kernel_search, entry.step_seconds is not None) else []
        lines += [f"no {_FIGURES.get(name, name)}: {reason}" for name, reason in entry.absent.items()]
        for line in lines:
            places.setdefault(line, {}).setdefault(entry.contender, []).append(entry.devices)
    for line, devices in places.items():
        yield f"{line} ({_describe_places(devices, scaling.spec)})"


def _uneven_rounds(scaling: Scaling) -> Iterator[str]:
    """Yield where the GPUs that rounds rotated over have different numbers of rounds that count."""
    for run in scaling.runs:
        parts = block_order.count_parts(run.devices, scaling.spec.rotation)
        timed = [entry for entry in scaling.scaling if entry.devices == run.devices and entry.step_seconds]
        rounds = range(1, len(timed[0].samples) + 1) if timed else range(0)
        counting = [number - 1 for number in rounds if number not in run.void_rounds]
        counts = [sum(number % parts == part for number in counting) for part in range(parts)]
        if len(set(counts)) > 1:
            where, numbers = f"on {count_noun(run.devices, 'device')}", ", ".join(map(str, counts))
            yield f"{where}, the parts of the GPUs have different numbers of rounds that count: {numbers}"


def _interruptions(scaling: Scaling) -> Iterator[str]:
    spec = scaling.spec
    if len(spec.devices_requested) > len(spec.devices):
        completed = f"{len(spec.devices)} of {len(spec.devices_requested)} numbers of devices"
        yield f"the run was interrupted after {completed} ({', '.join(map(str, spec.devices_requested))})"
    timed = [entry for entry in scaling.scaling if entry.status == "ok" and entry.step_seconds]
    rounds = {entry.devices: len(entry.samples) for entry in timed}
    for devices, completed in rounds.items():
        if completed < spec.rounds:
            yield f"interrupted after {completed} of {spec.rounds} rounds on {count_noun(devices, 'device')}"


def _describe_places(devices: Mapping[str, Sequence[int]], spec: ScalingSpec) -> str:
    """Return contenders with their numbers of devices, or `all`."""
    names = [
        name if tuple(counts) == spec.devices else f"{name} on {', '.join(map(str, counts))}"
        for name, counts in devices.items()
    ]
    return "all" if tuple(names) == spec.contenders else "; ".join(names)


def list_claims(scaling: Scaling) -> Iterator[str]:
    """Yield the verdict of each comparison on each number of devices."""
    for run in scaling.runs:
        for comparison in run.comparisons:
            yield f"on {count_noun(run.devices, 'device')}: {describe_comparison(comparison)}"


def list_definitions(scaling: Scaling) -> Iterator[str]:
    """Yield the definitions of the figures."""
    spec = scaling.spec
    yield (
        f"efficiency: {define_efficiency(scaling)}; {format_percent(spec.confidence, 6)} interval, Welch's t over the "
        "rounds of both numbers of devices"
    )
    rotating = [str(count) for count in spec.devices if block_order.count_parts(count, spec.rotation) > 1]
    if rotating:
        yield (
            f"rounds on {', '.join(rotating)} of the {spec.rotation} GPUs rotate over all of them, in whole parts, "
            "because they are not equally fast; the interval covers their differences"
        )
    yield f"MiB: {DEFINITIONS['live_peak_bytes']}, on one device, batches included"
    yield f"exposed: milliseconds of communication, {communication.DEFINITION}"
    yield "agrees: whether a contender agrees with the baseline on that many devices; for the baseline, with another"
