"""Where the time of a step goes, in words and tables."""

from collections.abc import Iterator, Sequence

from compare.explain.work_classes import IDLE, MEANINGS
from compare.report.document import Table
from compare.report.sentences import DASH, describe_basis, format_percent
from compare.report.telemetry_text import is_disturbed
from compare.results.explanation import Explanation, Finding, Layer, WorkClass, WorkFigures
from compare.results.model import Result

MOST_UNATTRIBUTED = 0.05
"""The share of a step without a class above which a table does not explain it."""
_EXCESS = 0.02
_MOST_SLOWED = 2.0
"""How much slower timed steps may be than profiled ones. A profiler only makes steps slower."""
_SHOWN_LAYERS = 12


def tables(result: Result) -> list[Table]:
    """Return the table by class, and the table of limits."""
    found = result.explanation
    if found is None or not found.step_milliseconds:
        return []
    names = list(found.step_milliseconds)
    shown = [each for each in found.classes if any(_is_there(each, name) for name in names)]
    rows = [_class_row(each, names) for each in shown]
    steps = [found.step_milliseconds[name] for name in names]
    rows.append(("sum: the timed step", *map(_number, steps), *_differences(steps), *(DASH for _ in names)))
    columns = ("ms per step", *names, *_difference_head(names), *(f"kernels, {name}" for name in names))
    caption = "Where a step goes, by class of work, in milliseconds. The classes of a contender sum to its timed step."
    limits = ("class, contender", "MB", "GFLOP", "share of the possible", "limit", "uncaptured ms")
    return [
        Table("classes", caption, columns, rows, describe_basis([result])),
        Table("limits", _limits_caption(found), limits, [*_limit_rows(shown, names)]),
    ]


def layer_table(result: Result, count: int | None = None) -> Table | None:
    """Return the table of layers, those with the largest difference first, at most `count` of them."""
    found = result.explanation
    if found is None or not found.layers:
        return None
    names = list(found.step_milliseconds)
    rows = [_layer_row(layer, names) for layer in found.layers[:count]]
    columns = ("layer and pass, ms", *names, *_difference_head(names), "longest kernels")
    caption = "Layers with the largest difference first, from a step whose kernels start one by one."
    return Table("layers", caption, columns, rows, detail=count is None)


def shown_layers(result: Result) -> Table | None:
    """Return the table of the few layers that differ most."""
    return layer_table(result, _SHOWN_LAYERS)


def lines(result: Result) -> Iterator[str]:
    """Yield what the tables say: the summary, the findings, and what limits the tables themselves."""
    found = result.explanation
    if found is None:
        return
    if is_disturbed(result):
        yield "these times are of void rounds, so they support no claim"
    yield from _summaries(found)
    for finding in found.findings:
        yield _finding_line(finding)
    yield from _reservations(found)


def _summaries(found: Explanation) -> Iterator[str]:
    """Yield for each other contender which classes make the difference to the baseline."""
    names = list(found.step_milliseconds)
    for name in names[1:]:
        slow, fast = sorted((names[0], name), key=lambda each: -found.step_milliseconds[each])
        difference = found.step_milliseconds[slow] - found.step_milliseconds[fast]
        if difference <= 0.01 * found.step_milliseconds[slow]:
            yield f"{slow} and {fast} take the same time within 1 %"
            continue
        gaps = sorted(
            (
                (each.contenders[slow].milliseconds - each.contenders[fast].milliseconds, each.name)
                for each in found.classes
            ),
            reverse=True,
        )
        large = [(gap, each) for gap, each in gaps if gap >= 0.1 * difference][:3]
        parts = " and ".join(f"{_number(gap)} ms is {each} ({MEANINGS.get(each, each)})" for gap, each in large)
        factor = found.step_milliseconds[slow] / found.step_milliseconds[fast]
        yield (
            f"{slow} takes {_number(found.step_milliseconds[slow])} ms a step, {factor:.3g} times as long as {fast} "
            f"with {_number(found.step_milliseconds[fast])} ms"
            + (f"; of the difference of {_number(difference)} ms, {parts}" if parts else "")
        )


def _finding_line(finding: Finding) -> str:
    text = f"{finding.contender}: {finding.text}"
    if finding.measured_milliseconds is not None:
        text += f"; measured {finding.measured_milliseconds:+.3g} ms"
    elif finding.measured_reason is not None:
        text += f"; not measured: {finding.measured_reason}"
    return text


def _reservations(found: Explanation) -> Iterator[str]:
    for name, share in found.attributed_share.items():
        if 1 - share > MOST_UNATTRIBUTED:
            yield f"the table does not explain the step of {name}: {format_percent(1 - share)} of it is unattributed"
    for name, excess in found.excess_milliseconds.items():
        if excess > _EXCESS * found.step_milliseconds[name]:
            yield (
                f"the profiled kernels of {name} take {_number(excess)} ms longer than its timed step, so its classes "
                "sum to more than the step"
            )
    for name, scale in found.scales.items():
        if scale <= _MOST_SLOWED:
            yield f"the profiler changes the speed of {name}, so its times are multiplied by {scale:.3g}"
            continue
        yield (
            f"the table does not explain the step of {name}: its timed steps took {scale:.3g} times as long as its "
            "profiled ones, because other programs worked; run it again on a quieter machine"
        )
    for name, reason in found.reasons.items():
        yield f"{name} is not explained, or in part: {reason}"
    host = [f"{name} {_number(milliseconds)} ms" for name, milliseconds in found.host_milliseconds.items()]
    if host:
        yield f"host time, in which Python starts the work of a step: {', '.join(host)}"


def _is_there(each: WorkClass, name: str) -> bool:
    return name in each.contenders and each.contenders[name].milliseconds > 0


def _class_row(each: WorkClass, names: Sequence[str]) -> tuple[str, ...]:
    figures = [each.contenders[name] for name in names]
    times = [figure.milliseconds for figure in figures]
    kernels = [DASH if each.name == IDLE else f"{figure.kernels:.0f}" for figure in figures]
    return (each.name, *map(_number, times), *_differences(times), *kernels)


def _layer_row(layer: Layer, names: Sequence[str]) -> tuple[str, ...]:
    figures = [layer.contenders[name] for name in names]
    times = [figure.milliseconds for figure in figures]
    kernels = "; ".join(
        f"{name}: {', '.join(_shorten(k) for k in layer.contenders[name].kernels[:2])}" for name in names
    )
    return (layer.name, *map(_number, times), *_differences(times), kernels)


def _shorten(kernel: str) -> str:
    return kernel if len(kernel) <= 48 else f"{kernel[:47]}…"


def _difference_head(names: Sequence[str]) -> tuple[str, ...]:
    return ("difference",) if len(names) == 2 else ()


def _differences(times: Sequence[float]) -> tuple[str, ...]:
    return (f"{times[1] - times[0]:+.3g}",) if len(times) == 2 else ()


def _limit_rows(shown: Sequence[WorkClass], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for each in shown:
        for name in names:
            figure = each.contenders[name]
            if each.name != IDLE and figure.milliseconds > 0:
                yield (f"{each.name}, {name}", *_limit_cells(figure))


def _limit_cells(figure: WorkFigures) -> tuple[str, ...]:
    return (
        DASH if figure.bytes is None else _number(figure.bytes / 1e6),
        DASH if figure.flops is None else _number(figure.flops / 1e9),
        DASH if figure.roofline_share is None else f"{100 * figure.roofline_share:.0f} %",
        figure.limit or DASH,
        DASH if figure.uncaptured_milliseconds is None else _number(figure.uncaptured_milliseconds),
    )


def _limits_caption(found: Explanation) -> str:
    peaks = found.peaks
    bandwidth = peaks.bandwidth_bytes_per_second
    flops = [f"{value / 1e12:.3g} TFLOP/s in {name}" for name, value in peaks.flops_per_second.items()]
    measured = [*([] if bandwidth is None else [f"{bandwidth / 1e9:.4g} GB/s"]), *flops]
    reached = f" Peaks measured in this run: {', '.join(measured)}." if measured else " No peak was measured."
    return (
        "Bytes of the kernels' arguments, operations of convolutions and products, and the least possible time at the "
        f"device's peaks over the time taken.{reached}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
