"""The figures of results in long form: one figure in a row. Dashboards and data frames read it.

A figure stands here only if its comparison may be claimed. INVALID, void rounds and failed contenders give none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compare.report import compact
from compare.report.compact import Row
from compare.report.sentences import describe_batches, name_work
from compare.results.model import Interval, Result

STEP_TIME, LATENCY, RATE, RATIO, MEMORY, COMPILE = (
    *("step-time", "latency", "images-per-second", "ratio", "peak-memory", "compile-time"),
)


@dataclass(frozen=True)
class Figure:
    """One figure of one contender, at one batch size.

    Attributes:
        row: the contender and its comparison.
        metric: one of the names in this file.
        unit: seconds, images/s, bytes, or 1 for a ratio.
        low, high: ends of the interval, None without one.
        confidence: of the interval.
        is_smaller_better: which direction is good.
    """

    row: Row
    metric: str
    unit: str
    value: float
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    is_smaller_better: bool = True

    @property
    def name(self) -> str:
        """What was measured, in words: workload, precision, batch, device and contender."""
        return f"{name_setting(self.row.result, self.row.batch_size)}: {self.row.contender.name}"


def name_setting(result: Result, batch_size: int | None = None) -> str:
    """Return what a result is of, in words. `batch_size` is that of one inference."""
    spec = result.spec
    batch = describe_batches(result) if batch_size is None else f"batch {batch_size}"
    deterministic = ", deterministic" if spec.deterministic else ""
    return f"{name_work(spec)}, {spec.precision}, {batch}, {spec.device}{deterministic}"


def list_names(result: Result) -> set[str]:
    """Return the name of every figure of a result that may be claimed."""
    return {figure.name for figure in list_figures([result])}


def list_figures(results: Sequence[Result]) -> Iterator[Figure]:
    """Yield every figure that may be claimed, in the order of results and contenders."""
    for result in results:
        for row in compact.list_rows(result):
            if compact.is_claimable(row):
                yield from _list_row(row)


def list_rows(results: Sequence[Result]) -> Iterator[Row]:
    """Yield every contender that is compared with a baseline."""
    return (row for result in results for row in compact.list_rows(result) if row.comparison is not None)


def _list_row(row: Row) -> Iterator[Figure]:
    contender, seconds = row.contender, compact.find_seconds(row)
    if seconds is not None:
        metric = STEP_TIME if row.batch_size is None else LATENCY
        yield _make(row, metric, "s", seconds.estimate, seconds)
        yield from _list_rates(row, seconds)
    ratio = row.comparison.claimed_ratio if row.comparison else None
    if ratio is not None:
        yield _make(row, RATIO, "1", ratio.estimate, ratio)
    memory = contender.memory.figure(compact.choose_memory(row.result)) if contender.memory else None
    if memory is not None:
        yield Figure(row, MEMORY, "B", float(memory))
    if contender.compile_seconds is not None:
        yield Figure(row, COMPILE, "s", contender.compile_seconds)


def _list_rates(row: Row, seconds: Interval) -> Iterator[Figure]:
    """Yield the rate. In training it has the interval of the step time."""
    rate = row.contender.images_per_second
    if row.batch_size is not None:
        latency = (row.contender.latency or {}).get(str(row.batch_size))
        if latency is not None and latency.images_per_second is not None:
            yield Figure(row, RATE, "images/s", latency.images_per_second, is_smaller_better=False)
    elif rate is not None:
        images = rate * seconds.estimate
        ends = images / seconds.high, images / seconds.low
        yield Figure(row, RATE, "images/s", rate, *ends, seconds.confidence, is_smaller_better=False)


def _make(row: Row, metric: str, unit: str, value: float, interval: Interval) -> Figure:
    return Figure(row, metric, unit, value, interval.low, interval.high, interval.confidence)
