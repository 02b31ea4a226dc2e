"""One time line with the kernels of all contenders, in the trace format that ui.perfetto.dev and Chrome read."""

from collections.abc import Iterator, Mapping
from typing import Any

from compare.base.profiles import Profile
from compare.explain import step_table
from compare.explain.kernels import Kernel

_KERNELS, _CLASSES, _LAYERS = 1, 1001, 1002


def make(profiles: Mapping[str, Profile]) -> dict[str, Any]:
    """Return a trace in which every contender is a process. Its steps begin at 0.

    Each contender has its streams, and a line each for the class and the layer of the kernels.
    """
    events: list[dict[str, Any]] = []
    for number, (name, profile) in enumerate(profiles.items(), start=1):
        kernels = step_table.read_kernels(profile)
        events += _name(number, 0, "process_name", name)
        events.append({"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}})
        events += _lines(number, kernels)
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _lines(process: int, kernels: list[Kernel]) -> Iterator[dict[str, Any]]:
    start = min((kernel.begin for kernel in kernels), default=0.0)
    lanes = {lane: _KERNELS + index for index, lane in enumerate(sorted({kernel.lane for kernel in kernels}))}
    for lane, number in lanes.items():
        yield from _name(process, number, "thread_name", f"kernels {lane}")
    yield from _name(process, _CLASSES, "thread_name", "class of work")
    yield from _name(process, _LAYERS, "thread_name", "layer")
    reached = 0.0
    for kernel in kernels:
        begin, duration = 1e6 * (kernel.begin - start), 1e6 * kernel.seconds
        layer = " ".join(filter(None, (kernel.layer, kernel.direction)))
        shown = {"class": kernel.work, "layer": layer, "operation": kernel.operation, "bytes": kernel.bytes}
        yield _span(process, lanes[kernel.lane], kernel.name, kernel.work, begin, duration, shown)
        if begin >= reached:  # kernels that run beside others would overlap on one line
            yield _span(process, _CLASSES, kernel.work, kernel.work, begin, duration, {})
            yield _span(process, _LAYERS, layer or "outside layers", kernel.work, begin, duration, {})
            reached = begin + duration


def _span(
    process: int, line: int, name: str, category: str, begin: float, duration: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": process,
        "tid": line,
        "name": name,
        "cat": category,
        "ts": begin,
        "dur": duration,
        "args": arguments,
    }


def _name(process: int, line: int, kind: str, text: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "tid": line, "name": kind, "args": {"name": text}}
