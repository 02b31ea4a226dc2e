"""The ratios of many results in one picture that fits a slide: a line for each contender, grouped by result."""

from collections.abc import Sequence
from dataclasses import dataclass

from compare.report import sentences
from compare.report.palette import find_light
from compare.report.plots.canvas import Absent, Axes, Figure, Picture, choose_verdict_colour, shorten, write_plain_ticks
from compare.results.model import Comparison, Result

_INCHES = 7.0
_LINE_INCHES, _AXIS_INCHES = 0.19, 0.55
_MOST_LINES = 180
_LIMITS = 1e-3, 1e3
_LEFT, _RIGHT = 0.34, 0.72
"""Where the axes begin and end, as parts of the width. Names stand left of them, and figures right."""
_NAMES = -_LEFT / (_RIGHT - _LEFT) + 0.05
"""Where names begin, as a part of the axes' width."""

_LONGEST_NAME, _LONGEST_GROUP = 34, 60


@dataclass(frozen=True)
class Line:
    """One line of the picture: a comparison, the baseline that it is compared with, or the heading of a group."""

    text: str
    comparison: Comparison | None = None
    is_baseline: bool = False


def make_picture(results: Sequence[Result]) -> Picture | Absent:
    """Return the picture of all comparisons that have a ratio to show."""
    lines = list_lines(results)
    if not any(line.comparison and line.comparison.claimed_ratio for line in lines):
        return Absent("no comparison has a ratio that may be shown")
    if len(lines) > _MOST_LINES:
        return Absent(f"{len(lines):,} lines are too many to draw; the table has them")
    time = sentences.name_times(results)
    caption = (
        f"{time.capitalize()} of each contender over those of the baseline, on a logarithmic scale. Left of the line "
        "at 1 the contender is faster. Diamond and bar: estimate and interval."
    )
    title = f"{time.capitalize()} relative to the baseline's"
    return Picture("summary", title, caption, sentences.describe_basis(results), lambda: _draw(lines))


def list_lines(results: Sequence[Result]) -> list[Line]:
    """Return the headings, one for each result and batch size, and below them the baseline and the comparisons."""
    lines = list[Line]()
    many_devices = len({sentences.describe_device(result) for result in results}) > 1
    for result in results:
        spec = result.spec
        where = f", {sentences.describe_device(result)}" if many_devices else ""
        devices = sentences.describe_devices(result, names_exceptions=False)
        for size in spec.batch_sizes or (None,):
            shown = [comparison for comparison in result.comparisons if comparison.batch_size == size]
            if shown:
                batch = f"batch {size or spec.batch_size}{devices}"
                heading = f"{sentences.name_work(spec)}, {spec.precision}, {batch}{where}"
                lines.append(Line(shorten(heading, _LONGEST_GROUP)))
                lines.append(Line(shorten(shown[0].baseline, _LONGEST_NAME), is_baseline=True))
                lines += [Line(shorten(comparison.contender, _LONGEST_NAME), comparison) for comparison in shown]
    return lines


def _draw(lines: Sequence[Line]) -> Figure:
    from matplotlib.figure import Figure as NewFigure

    height = _LINE_INCHES * len(lines) + _AXIS_INCHES
    figure: Figure = NewFigure(figsize=(_INCHES, height))
    bottom = (_AXIS_INCHES - 0.08) / height
    axes: Axes = figure.add_axes((_LEFT, bottom, _RIGHT - _LEFT, 1 - bottom - 0.08 / height))
    ends = [1.0]
    for index, line in enumerate(lines):
        if line.is_baseline:
            _write(axes, line.text, _NAMES, -index)
            _write(axes, "baseline", 1.02, -index)
        elif line.comparison is None:
            _write(axes, line.text, -_LEFT / (_RIGHT - _LEFT) + 0.01, -index, weight="bold")
        else:
            ends += _draw_line(axes, line, -index)
    axes.axvline(1, color=find_light("muted"), linewidth=0.8, zorder=1)
    axes.set_ylim(-len(lines) + 0.5, 0.5)
    axes.set_yticks([])
    axes.spines.left.set_visible(False)
    _scale(axes, min(ends), max(ends))
    axes.set_xlabel("contender faster  ←  time / baseline's  →  contender slower")
    return figure


def _draw_line(axes: Axes, line: Line, y: float) -> list[float]:
    """Draw one interval with its name and figures, or the verdict alone without a ratio. Return the interval's ends."""
    comparison = line.comparison
    ratio = comparison.claimed_ratio if comparison else None
    assert comparison is not None
    _write(axes, line.text, _NAMES, y)
    if ratio is None:
        _write(axes, f"{sentences.DASH} {comparison.verdict}", 1.02, y)
        return []
    low, estimate, high = (min(max(value, _LIMITS[0]), _LIMITS[1]) for value in (ratio.low, ratio.estimate, ratio.high))
    colour = choose_verdict_colour(comparison.verdict)
    axes.plot([low, high], [y, y], color=colour, linewidth=2.4, solid_capstyle="butt", zorder=3)
    axes.plot([estimate], [y], "D", color=colour, markersize=4, zorder=4)
    text, below, above = sentences.format_ratio_figures(ratio)
    _write(axes, f"{text} ({below} to {above}) {comparison.verdict}", 1.02, y)
    return [low, high]


def _write(axes: Axes, text: str, x: float, y: float, **style: str) -> None:
    axes.annotate(text, (x, y), xycoords=("axes fraction", "data"), va="center", annotation_clip=False, **style)


def _scale(axes: Axes, low: float, high: float) -> None:
    axes.set_xscale("log")
    pad = (high / low) ** 0.05 * 1.01
    axes.set_xlim(low / pad, high * pad)
    write_plain_ticks(axes.xaxis)
    if high / low < 2:  # powers of ten and their multiples are too far apart
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
