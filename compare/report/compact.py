"""Report several results as one table and one picture, for a paper or a slide."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from compare.report import matrix, pair_text
from compare.report.document import Report, Section, Table
from compare.report.measurements import format_mebibytes, name_memory_figure
from compare.report.plots import summary_plot
from compare.report.sentences import (
    DASH,
    describe_device,
    describe_devices,
    describe_variant,
    format_percent,
    format_ratio_figures,
    name_work,
)
from compare.results.model import Comparison, Contender, Interval, Result

_BASELINE = "baseline"
_LIVE, _PROCESS = "live_peak_bytes", "process_bytes"
_DIGITS = 4


@dataclass(frozen=True)
class Row:
    """One contender of one result.

    Attributes:
        comparison: None for a baseline, and without timed rounds.
        batch_size: the batch size of an inference; None for training.
    """

    result: Result
    contender: Contender
    comparison: Comparison | None
    batch_size: int | None = None


_SETTINGS: dict[str, Callable[[Row], str]] = {
    "workload": lambda row: _name_workload(row.result),
    "device": lambda row: describe_device(row.result),
    "precision": lambda row: row.result.spec.precision,
    "batch": lambda row: _describe_batch(row),
    "contender": lambda row: row.contender.name,
}
"""Columns that say what was measured. One that is equal in all rows stands in the caption, except for the contender."""

_FIGURES: dict[str, Callable[[Row], str]] = {
    "ms": lambda row: _format_milliseconds(row),
    "ratio": lambda row: _format_ratio(row)[0],
    "interval": lambda row: _format_ratio(row)[1],
    "MiB": lambda row: _format_memory(row),
    "verdict": lambda row: _describe_verdict(row),
}

GROUPED = ("", *_FIGURES)
"""The heads of `group_rows`."""


def report(results: Sequence[Result]) -> Report:
    """Return the report of several results: one table, one picture, and nothing else."""
    said = matrix.summarise(results)
    return Report(said, said, make_section(results), [])


def report_in_full(results: Sequence[Result]) -> Report:
    """Return the report of one or several results with every section. Several begin with the table and the matrix."""
    whole = matrix.report(results)
    if whole.overview is None:
        return whole
    tables = [make_table(results), *whole.overview.tables]
    return replace(whole, overview=replace(whole.overview, tables=tables))


def make_section(results: Sequence[Result]) -> Section:
    """Return the table of several results, and all their ratios as a picture."""
    return Section(
        name="summary", title="All results", picture=summary_plot.make_picture(results), tables=[make_table(results)]
    )


def make_table(results: Sequence[Result]) -> Table:
    """Return a row for each contender of each result: milliseconds, ratio, interval, memory and verdict.

    INVALID has neither a time nor a ratio.
    """
    rows = [row for result in results for row in list_rows(result)]
    texts = {name: [write(row) for row in rows] for name, write in _SETTINGS.items()}
    shown = [name for name, column in texts.items() if len(set(column)) > 1 or name == "contender"]
    shared = [f"{name} {texts[name][0]}" for name in texts if name not in shown and texts[name]]
    ratios = [row.comparison.claimed_ratio for row in rows if row.comparison]
    levels = sorted({format_percent(ratio.confidence, 6) for ratio in ratios if ratio})
    measured = [result for result in results if any(contender.memory for contender in result.contenders)]
    memory = list(dict.fromkeys(choose_memory(result) for result in measured or results))
    caption = (
        f"{' or '.join(sorted(set(map(_name_time, results))))}, and its ratio to the baseline's above it. "
        "Below 1 is faster. "
        f"MiB: {' or '.join(name_memory_figure(name) for name in memory)} memory."
    )
    caption += f" Intervals: {' or '.join(levels)}." if levels else ""
    caption += f" In all rows: {', '.join(shared)}." if shared else ""
    cells = [
        (*(texts[name][index] for name in shown), *(write(row) for write in _FIGURES.values()))
        for index, row in enumerate(rows)
    ]
    return Table("summary", caption, (*shown, *_FIGURES), cells, _describe_rounds(results))


def group_rows(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """Yield the rows for a narrow page: a result in one cell, and then its contenders with the figures of `GROUPED`."""
    for result in results:
        rows = list(list_rows(result))
        precision = result.spec.precision
        for size, of_size in itertools.groupby(rows, key=lambda row: row.batch_size):
            first, *others = of_size
            del size
            batch = f"batch {_describe_batch(first)}"
            yield (f"{_name_workload(result)}, {precision}, {batch}, {describe_device(result)}",)
            for row in (first, *others):
                yield (f"  {row.contender.name}", *(write(row) for write in _FIGURES.values()))


def list_rows(result: Result) -> Iterator[Row]:
    """Yield a row for each contender, the baseline first. An inference has rows for each batch size."""
    comparisons = {(comparison.contender, comparison.batch_size): comparison for comparison in result.comparisons}
    for size in result.spec.batch_sizes or (None,):
        for contender in result.contenders:
            yield Row(result, contender, comparisons.get((contender.name, size)), size)


def find_seconds(row: Row) -> Interval | None:
    """Return the time of a step, or the median latency at the row's batch size, with its interval. None without one."""
    if row.batch_size is None:
        return row.contender.step_seconds.interval if row.contender.step_seconds else None
    latency = (row.contender.latency or {}).get(str(row.batch_size))
    if latency is None or latency.p50 is None or latency.low is None or latency.high is None:
        return None
    return Interval(latency.p50, latency.low, latency.high, row.result.confidence)


def is_claimable(row: Row) -> bool:
    """Tell whether a row's time may be shown. A baseline's may if any comparison with it is valid."""
    if find_seconds(row) is None or row.contender.status != "ok":
        return False
    if row.comparison is not None:
        return row.comparison.verdict != "INVALID"
    if row.contender is not row.result.contenders[0]:
        return False
    sizes = {row.batch_size, None}
    return any(each.verdict != "INVALID" for each in row.result.comparisons if each.batch_size in sizes)


def _name_time(result: Result) -> str:
    return "Time of a training step" if result.spec.batch_sizes is None else "p50 of a request"


def _name_workload(result: Result) -> str:
    models = pair_text.list_models(result.spec)
    name = name_work(result.spec)
    return f"{name} ({' and '.join(models)})" if models else name


def _describe_batch(row: Row) -> str:
    result = row.result
    size = row.batch_size or result.spec.batch_size
    return f"{size}{describe_variant(result.spec)}{describe_devices(result, names_exceptions=False)}"


def _format_milliseconds(row: Row) -> str:
    seconds = find_seconds(row)
    if seconds is None or not is_claimable(row):
        return DASH
    value = 1e3 * seconds.estimate
    return f"{value:,.0f}" if value >= 10**_DIGITS else f"{value:#.{_DIGITS}g}"


def _format_ratio(row: Row) -> tuple[str, str]:
    ratio = row.comparison.claimed_ratio if row.comparison else None
    if ratio is None:
        return DASH, DASH
    estimate, low, high = format_ratio_figures(ratio)
    return estimate, f"{low} to {high}"


def _format_memory(row: Row) -> str:
    memory = row.contender.memory
    size = memory.figure(choose_memory(row.result)) if memory else None
    return DASH if size is None else format_mebibytes(size)


def choose_memory(result: Result) -> str:
    """Return the memory figure of a result: the live peak, or the process's where the device tells no live peak."""
    memories = [contender.memory for contender in result.contenders if contender.memory]
    return _LIVE if not memories or any(memory.figure(_LIVE) is not None for memory in memories) else _PROCESS


def _describe_verdict(row: Row) -> str:
    if row.contender.status != "ok":
        return row.contender.status
    if row.comparison is not None:
        return row.comparison.verdict
    if row.contender is row.result.contenders[0] and row.result.comparisons:
        return _BASELINE
    return f"agreement {row.result.agreement.status}"


def _describe_rounds(results: Sequence[Result]) -> str:
    counts = sorted({result.spec.rounds - len(result.void_rounds) for result in results if result.spec.rounds})
    if not counts:
        return "Nothing was timed."
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"n = {count} rounds of fresh processes in each result."
