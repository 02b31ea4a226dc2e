"""Step times of every tuning at a glance, a row a workload and precision, for docs/h200.md (`benchmarks.tables`)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.base.workloads import WORKLOADS
from compare.report.sentences import DASH

CONTENDERS = tuple(f"{backend}:{tuning}" for backend in ("torch", "jax") for tuning in ("stock", "compiled", "tuned"))
PRECISIONS = ("float32", "tf32", "bfloat16")
COLUMNS = ("workload, batch", "precision", *(f"`{name}`" for name in CONTENDERS), "agreement", "file")


def rows(found: Mapping[Path, Mapping[str, Any]], link: Callable[[Path, Any], str]) -> list[Sequence[str]]:
    """Return a row for every result of all `CONTENDERS`, workloads and precisions in samestep's own order.

    `link` makes the last cell of a result and its file.
    """
    placed = {_place(result): (path, result) for path, result in found.items() if _is_of_all(result)}
    ordered = [placed[place] for place in _places() if place in placed]
    return [(*_cells(result), link(path, result)) for path, result in ordered]


def missing(found: Mapping[Path, Mapping[str, Any]]) -> str:
    """Return in words which workloads have no such result, with a proved time of everyone, in which precisions."""
    there = {_place(result) for result in found.values() if _is_of_all(result) and _has_all_times(result)}
    lacking: dict[str, list[str]] = {}
    for workload, precision in _places():
        if (workload, precision) not in there:
            lacking.setdefault(workload, []).append(precision)
    return "; ".join(f"{workload} in {', '.join(precisions)}" for workload, precisions in lacking.items())


def _places() -> list[tuple[str, str]]:
    return [(workload, precision) for workload in WORKLOADS for precision in PRECISIONS]


def _place(result: Mapping[str, Any]) -> tuple[str, str]:
    return result["spec"]["workload"], result["spec"]["precision"]


def _is_of_all(result: Mapping[str, Any]) -> bool:
    return set(CONTENDERS) <= {each["name"] for each in result["contenders"]}


def _has_all_times(result: Mapping[str, Any]) -> bool:
    return all(_interval(each) and each["unproven"] is None for each in result["contenders"])


def _cells(result: Mapping[str, Any]) -> Sequence[str]:
    spec, contenders = result["spec"], {each["name"]: each for each in result["contenders"]}
    times = [_time(contenders[name]) for name in CONTENDERS]
    return f"{spec['workload']}, {spec['batch_size']}", spec["precision"], *times, result["agreement"]["status"]


def _time(contender: Mapping[str, Any]) -> str:
    found, interval = contender["step_seconds"], _interval(contender)
    if not found:
        return DASH
    weak = [] if interval else ["one round"]
    weak += [] if contender["unproven"] is None else ["unproven"]
    seconds = interval["estimate"] if interval else found["median"]
    return f"{1e3 * seconds:.3f}" + (f" ({', '.join(weak)})" if weak else "")


def _interval(contender: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a contender's step time with its interval; a single round, as of a run that was cut off, has none."""
    return contender["step_seconds"] and contender["step_seconds"]["interval"]
