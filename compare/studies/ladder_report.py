"""The tables, the picture and the LaTeX of a ladder."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from compare.base.errors import make_printable
from compare.base.statistics import Ratio
from compare.report import columns
from compare.report.document import Report, Section, Table
from compare.report.formats import latex
from compare.report.palette import find_light
from compare.report.plots.canvas import Absent, Figure, Picture, choose_colour
from compare.report.sentences import DASH, format_percent, format_ratio_figures
from compare.studies.ladder_rungs import Ladder, Rung, RungContender

_MEBIBYTE = 2**20
_LEAST_WIDTH = 120
_PICTURE_INCHES = (7.2, 3.9)  # the shape of a slide
_BAR = 0.8
_MOST_ABOVE = 1.6
"""How high an interval may reach, in the highest bar. What is above is cut off."""

_TIMES = ("rung", "backend", "step (ms)", "interval", "time of an image", "images/s", "kept")
_COSTS = ("rung", "backend", "MiB", "compile (s)", "breaks even", "latency (ms)", "accuracy", "agreement")
_ENDS = ("", "backend", "form", "step (ms)", "images/s", "times as fast", "MiB", "accuracy", "agreement")


def make_tables(ladder: Ladder) -> list[Table]:
    """Return the tables: times, costs, and before and after."""
    pairs = [(rung, backend, each) for rung in ladder.rungs for backend, each in rung.contenders.items()]
    lost = frozenset(index for index, (_, _, each) in enumerate(pairs) if each.kept is False)
    setting = _state_setting(ladder)
    times = "Step time of each rung, and an image's time over that on the rung before. Lost rungs are not built on."
    costs = "What each rung costs: memory, compilation and the steps until it has paid, and what stays equal."
    ends = "Before and after: the first rung and the best one."
    end_rows = [
        _list_end(ladder, backend, *end) for backend in _list_backends(ladder) for end in ladder.find_ends(backend)
    ]
    return [
        Table("times", times, _TIMES, [_list_times(*pair) for pair in pairs], setting, marked=lost),
        Table("costs", costs, _COSTS, [_list_costs(*pair) for pair in pairs], setting, marked=lost),
        Table("before-and-after", ends, _ENDS, end_rows, setting, prose=True),
    ]


def describe(ladder: Ladder) -> str:
    """Return the workload and the device in words."""
    return f"{ladder.workload} on {ladder.device_name or ladder.device}"


def _state_setting(ladder: Ladder) -> str:
    return f"Setting: {describe(ladder)}; {ladder.rounds} rounds of fresh processes for each rung, 95 % intervals."


def list_remarks(ladder: Ladder) -> list[str]:
    """Return what must be said about rungs: those that were skipped, those that lost, and how each was timed."""
    return list(_remark(ladder))


def _remark(ladder: Ladder) -> Iterator[str]:
    for rung in ladder.rungs:
        if rung.reason:
            yield f"{rung.name}: skipped. {rung.reason}"
            continue
        rounds = "" if rung.is_same_rounds or rung is ladder.rungs[0] else " (other rounds than the rung before)"
        yield f"{rung.name}: {rung.change}{rounds}"
        for backend, each in rung.contenders.items():
            if each.reason:
                yield f"    {backend}: {_describe_kept(each)}, {each.reason}"
            if rung.operations is not None and each.ratio is not None:
                yield f"    {backend}: {_compare_with_operations(rung.operations, each.ratio)}"


def _compare_with_operations(operations: tuple[int, int], ratio: Ratio) -> str:
    """Return how the time of an image changed beside the operations that pruning removed."""
    before, after = operations
    share = after / before
    said = f"operations fell to {share:.0%}, the time of an image to {ratio.estimate:.0%}"
    if ratio.high >= 1:
        return f"operations fell to {share:.0%}, and the time of an image did not surely fall"
    return f"{said}, less than half as much" if 1 - ratio.estimate < (1 - share) / 2 else said


def _describe_kept(each: RungContender) -> str:
    return {True: "kept", False: "lost", None: "no change"}[each.kept]


def _list_times(rung: Rung, backend: str, each: RungContender) -> tuple[str, ...]:
    return (rung.name, backend, *_format_step(each), _format_ratio(each), _format_rate(each), _describe_kept(each))


def _list_costs(rung: Rung, backend: str, each: RungContender) -> tuple[str, ...]:
    steps = DASH if each.break_even_steps is None else f"{each.break_even_steps:,} steps"
    compile_seconds = DASH if each.compile_seconds is None else f"{each.compile_seconds:.3g}"
    latency = ", ".join(
        f"{1e3 * requests['p50']:.3g} of {size}" if "p50" in requests else f"{DASH} of {size}"
        for size, requests in (each.latency_seconds or {}).items()
    )
    return (
        *(rung.name, backend, _format_memory(each), compile_seconds, steps, latency or DASH),
        *(_format_accuracy(each), each.agreement or DASH),
    )


def _list_end(ladder: Ladder, backend: str, name: str, rung: Rung, each: RungContender) -> tuple[str, ...]:
    first = ladder.find_ends(backend)[0][2].images_per_second
    rate = each.images_per_second
    gain = f"{rate / first:.2f}" if first and rate else DASH
    pruned = f", {rung.prune:g} pruned" if rung.prune else ""
    form = f"{each.contender.partition(':')[2]}, {rung.precision}, batch {rung.batch_size}{pruned}"
    return (
        *(name, backend, form, _format_step(each)[0], _format_rate(each), gain),
        *(_format_memory(each), _format_accuracy(each), each.agreement or DASH),
    )


def _format_step(each: RungContender) -> tuple[str, str]:
    step = each.step_seconds
    if step is None:
        return DASH, DASH
    return f"{1e3 * step.estimate:.4g}", f"{1e3 * step.low:.4g} to {1e3 * step.high:.4g}"


def _format_ratio(each: RungContender) -> str:
    if each.ratio is None:
        return DASH
    estimate, low, high = format_ratio_figures(each.ratio)
    return f"{estimate} [{low}, {high}]"


def _format_rate(each: RungContender) -> str:
    return DASH if each.images_per_second is None else _format_figures(each.images_per_second, 4)


def _format_figures(value: float, digits: int) -> str:
    """Return a number with so many digits, and commas in place of an exponent."""
    return f"{float(f'{value:.{digits}g}'):,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def _format_memory(each: RungContender) -> str:
    taken = each.memory and (each.memory.live_peak_bytes or each.memory.process_bytes)
    return DASH if not taken else f"{taken / _MEBIBYTE:,.0f}"


def _format_accuracy(each: RungContender) -> str:
    return DASH if each.test_accuracy is None else format_percent(each.test_accuracy)


def _list_backends(ladder: Ladder) -> list[str]:
    return list(dict.fromkeys(backend for rung in ladder.rungs for backend in rung.contenders))


def render(ladder: Ladder, console: Console) -> None:
    """Print the tables, with the remarks between them. The last lines are before and after."""
    console.width = max(console.width, _LEAST_WIDTH)
    times, costs, ends = make_tables(ladder)
    for table in (times, costs):
        columns.show(table.columns, table.rows, console, prose=(0, 1), right=range(2, len(table.columns)))
        console.print()
    for line in list_remarks(ladder):
        console.print(Text(make_printable(line)))
    console.print()
    columns.show(ends.columns, ends.rows, console, prose=(0, 2), right=(3, 4, 5, 6, 7))


def make_latex(ladder: Ladder) -> str:
    """Return the tables for a paper."""
    said = f"Ladder of {describe(ladder)}"
    section = Section(name="ladder", title="Optimisation ladder", tables=make_tables(ladder))
    return latex.render(Report(said, said, section, []), {})


def make_picture(ladder: Ladder) -> Picture | Absent:
    """Return the picture: images per second of every rung that was timed, a bar for each backend."""
    timed = [rung for rung in ladder.rungs if any(each.images_per_second for each in rung.contenders.values())]
    if not timed:
        return Absent("no rung was timed")
    caption = (
        "Images per second on every rung: higher is better. A rung with a hatched bar was not kept. A dash stands "
        "where a framework has no such change."
    )
    return Picture(
        "ladder",
        f"Optimisation ladder of {ladder.workload}",
        caption,
        _state_setting(ladder),
        lambda: _draw(timed, _list_backends(ladder)),
    )


def _draw(timed: Sequence[Rung], backends: Sequence[str]) -> Figure:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=_PICTURE_INCHES, layout="constrained")
    axes: Any = figure.subplots()
    width = _BAR / len(backends)
    top = max(each.images_per_second or 0.0 for rung in timed for each in rung.contenders.values())
    highest = top
    for number, backend in enumerate(backends):
        colour = choose_colour(number)
        for place, rung in enumerate(timed):
            each = rung.contenders.get(backend)
            rate = each.images_per_second if each else None
            x = place + (number - (len(backends) - 1) / 2) * width
            if each is None or rate is None:
                axes.annotate(DASH, (x, 0), xytext=(0, 3), textcoords="offset points", ha="center", color=colour)
                continue
            is_lost = each.kept is False
            axes.bar(
                x,
                rate,
                0.92 * width,
                facecolor=find_light("paper") if is_lost else colour,
                edgecolor=colour,
                linewidth=0.9,
                hatch="////" if is_lost else None,
            )
            top_of_bar = rate
            if (step := each.step_seconds) is not None:
                top_of_bar = min(rate * step.estimate / step.low, _MOST_ABOVE * top)
                highest = max(highest, top_of_bar)
                ends = [[rate - rate * step.estimate / step.high], [rate * step.estimate / step.low - rate]]
                axes.errorbar(x, rate, ends, color=find_light("ink"), linewidth=0.8, capsize=1.5)
            axes.annotate(
                _format_figures(rate, 3),
                (x, top_of_bar),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                va="bottom",
                rotation=90 if len(backends) * len(timed) > 12 else 0,
                fontsize="x-small",
            )
        axes.bar(math.nan, math.nan, color=colour, label=backend)
    axes.bar(
        math.nan, math.nan, facecolor=find_light("paper"), edgecolor=find_light("muted"), hatch="////", label="not kept"
    )
    axes.set_ylim(0, 1.1 * highest)
    axes.set_ylabel("images per second")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xticks(range(len(timed)), [rung.name for rung in timed], rotation=30, ha="right")
    axes.legend(frameon=False, ncols=len(backends) + 1, loc="lower left", bbox_to_anchor=(0, 1))
    return figure
