"""The report that a person reads in a terminal after `samestep scale`: `render`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from compare.base import communication, typed_json
from compare.machine.memory import DEFINITIONS
from compare.report import columns
from compare.report.measurements import ONE_SEARCH, has_one_search, mebibytes
from compare.report.sentences import DASH, counted, name_device, percent, plain, ratio_figures, sentence
from compare.results.model import Comparison, Environment, Interval
from compare.settings import block_order

_TITLES = ("devices", "images/s", "efficiency", "MiB", "exposed", "agrees")  # all of it within 80 letters
_FIGURES = {"communication_seconds": "exposed communication", "memory_per_device_bytes": "memory per device"}


def render(result: Mapping[str, Any], console: Console) -> None:
    """Print the object of a scaling's result file (`compare.studies.scaling_result`).

    A table, what is lacking and why, the comparison on each number of devices, and definitions.
    """

    def say(text: str) -> None:
        console.print(Text(plain(text)))

    say(heading(result))
    console.print()
    _print_table(result, console)
    for part in (list(remarks(result)), list(claims(result)), list(definitions(result))):
        console.print()
        for line in part:
            say(line)


def heading(result: Mapping[str, Any]) -> str:
    """Return in words what was scaled, on what and how often."""
    spec = result["spec"]
    device = name_device(spec["device"], Environment(extra=result["environment"]))
    return (
        f"{spec['mode']} scaling of {spec['workload']} on {device} in {spec['precision']}: {batch(spec)}, "
        f"batch norm {spec['batch_norm']}, {counted(spec['rounds'], 'round')} on each number of devices, seed "
        f"{spec['seed']}"
    )


def batch(spec: Mapping[str, Any]) -> str:
    """Return in words how many images a step has."""
    return f"batch {spec['batch_size']}" + (" for each device" if spec["mode"] == "weak" else " over all devices")


def definition(result: Mapping[str, Any]) -> str:
    """Return what the efficiency in a result is."""
    fewest = result["spec"]["devices"][0]
    times = "N times" if fewest == 1 else f"N/{fewest} times"
    return f"images/s on N devices over {times} those on {fewest}"


def _print_table(result: Mapping[str, Any], console: Console) -> None:
    rows: list[tuple[str, ...]] = []
    for each in result["scaling"]:
        if each["devices"] == result["spec"]["devices"][0]:
            rows.append((plain(each["contender"]),))
        rows.append((f"  {each['devices']}", *cells(each)))
    table = columns.table(_TITLES, rows, console.width, right=range(1, len(_TITLES)), tight=True)
    if table:
        console.print(table)
        return
    for each in result["scaling"]:
        title = f"{plain(each['contender'])} on {counted(each['devices'], 'device')}"
        columns.stack(title, zip(_TITLES[1:], cells(each), strict=True), console)


def cells(entry: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Return images/s, efficiency, MiB, exposed milliseconds and agreement; a dash for what there is not."""
    speed, memory, exposed = (
        entry[name] for name in ("images_per_second", "memory_per_device_bytes", "communication_seconds")
    )
    return (
        DASH if speed is None else f"{speed:,.0f}",
        efficiency(entry),
        DASH if memory is None else mebibytes(memory),
        DASH if exposed is None else f"{1e3 * exposed:.3f}",
        entry["agreement"],
    )


def efficiency(entry: Mapping[str, Any]) -> str:
    """Return the efficiency of one contender on one number of devices, with its interval, in figures or a dash."""
    found = entry["efficiency"]
    if found is None:
        return DASH
    if found["low"] == found["high"] == 1:
        return "1"  # on the fewest devices, by definition
    estimate, low, high = ratio_figures(typed_json.read(Interval, found))
    return f"{estimate} ({low}{DASH}{high})"


def remarks(result: Mapping[str, Any]) -> Iterator[str]:
    """Say what was interrupted or failed, where times do not count or hang on one search, why figures are missing."""
    yield from _interrupted(result)
    for each in result["scaling"]:
        if each["status"] != "ok":
            yield f"{each['contender']} on {counted(each['devices'], 'device')}: {each['status']}, {each['reason']}"
    for run in result["runs"]:
        where, agreement = f"on {counted(run['devices'], 'device')}", run["agreement"]
        if agreement["status"] == "fail":
            yield f"agreement {where}: fail, first mismatch {agreement['first_mismatch'] or 'not known'}"
        elif agreement["status"] == "skipped":
            yield f"agreement {where}: skipped, {agreement['reason']}"
        if run["voided"]:
            reasons = "; ".join(dict.fromkeys(each["reason"] for each in run["voided"]))
            yield f"{counted(len(run['voided']), 'round')} void {where}: {reasons}"
    yield from _uneven(result)
    told: dict[str, dict[str, list[int]]] = {}
    for each in result["scaling"]:
        lacking = [f"no {_FIGURES.get(name, name)}: {reason}" for name, reason in each["absent"].items()]
        for said in (
            [ONE_SEARCH] if has_one_search(each["kernel_search"], each["step_seconds"] is not None) else []
        ) + lacking:
            told.setdefault(said, {}).setdefault(each["contender"], []).append(each["devices"])
    for said, of in told.items():
        yield f"{said} ({_places(of, result['spec'])})"


def _uneven(result: Mapping[str, Any]) -> Iterator[str]:
    """Say where rounds that count are not equally many on each part of the GPUs that they went around on."""
    for run in result["runs"]:
        parts = block_order.count_parts(run["devices"], result["spec"].get("rotation", 1))
        timed = [each for each in result["scaling"] if each["devices"] == run["devices"] and each["step_seconds"]]
        void = {each["round"] - 1 for each in run["voided"]}
        whole = [n for n in range(len(timed[0]["step_seconds"]["samples"])) if n not in void] if timed else []
        counts = [sum(number % parts == part for number in whole) for part in range(parts)]
        if len(set(counts)) > 1:
            where, said = f"on {counted(run['devices'], 'device')}", ", ".join(map(str, counts))
            yield f"{where}, rounds that count are not equally many on each part of the GPUs: {said}"


def _interrupted(result: Mapping[str, Any]) -> Iterator[str]:
    spec = result["spec"]
    requested = spec.get("devices_requested", spec["devices"])
    if len(requested) > len(spec["devices"]):
        whole = f"{len(spec['devices'])} of {len(requested)} numbers of devices"
        yield f"the run was interrupted after {whole} ({', '.join(map(str, requested))})"
    timed = [each for each in result["scaling"] if each["status"] == "ok" and each["step_seconds"]]
    rounds = {each["devices"]: len(each["step_seconds"]["samples"]) for each in timed}
    for count, whole in rounds.items():
        if whole < spec["rounds"]:
            yield f"interrupted after {whole} of {spec['rounds']} rounds on {counted(count, 'device')}"


def _places(of: Mapping[str, Sequence[int]], spec: Mapping[str, Any]) -> str:
    """Return contenders, each with the numbers of devices unless these are all."""
    named = [
        name if list(counts) == spec["devices"] else f"{name} on {', '.join(map(str, counts))}"
        for name, counts in of.items()
    ]
    return "all" if named == spec["contenders"] else "; ".join(named)


def claims(result: Mapping[str, Any]) -> Iterator[str]:
    """Say how the comparison on each number of devices ended."""
    for run in result["runs"]:
        for comparison in run["comparisons"]:
            yield f"on {counted(run['devices'], 'device')}: {sentence(typed_json.read(Comparison, comparison))}"


def definitions(result: Mapping[str, Any]) -> Iterator[str]:
    """Say what the figures are."""
    rotation = result["spec"].get("rotation", 1)
    yield (
        f"efficiency: {definition(result)}; {percent(result['spec']['confidence'], 6)} interval, Welch's t over the "
        "rounds of both numbers of devices"
    )
    around = [str(count) for count in result["spec"]["devices"] if block_order.count_parts(count, rotation) > 1]
    if around:
        yield (
            f"rounds on {', '.join(around)} of the {rotation} GPUs go around on all of them, in whole parts, for they "
            "are not equally fast: the interval has what they differ by"
        )
    yield f"MiB: {DEFINITIONS['live_peak_bytes']}, on one device, the batches that lie there included"
    yield f"exposed: milliseconds of communication, {communication.DEFINITION}"
    yield "agrees: whether a contender and the baseline, or the baseline and another, agree on that number of devices"
