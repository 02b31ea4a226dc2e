"""The ratio of step times of each comparison, with its interval and the ratio of every round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compare.report import sentences
from compare.report.palette import find_light
from compare.report.plots.canvas import (
    LETTER_INCHES,
    WIDTH,
    Absent,
    Axes,
    Figure,
    Picture,
    choose_verdict_colour,
    make_panels,
    shorten,
)
from compare.results import verdicts
from compare.results.model import Comparison, Result

_ROW_INCHES, _LINE_INCHES, _AXIS_INCHES = 0.42, 0.18, 0.5
_DOTS_INCHES, _BELOW_INCHES = 0.085, 0.18  # from a row's interval down to its dots, and to the next row
_LONGEST = int(WIDTH / LETTER_INCHES)  # letters of a line
_LIMITS = 1e-3, 1e3
_MOST_ROWS = 60
_ABOVE_INCHES = 0.045  # from a row's interval up to the end of the margin and of the line at 1
_DECADES = tuple(10.0**power for power in range(-3, 4))
_STEPS = tuple(sorted({step * decade for decade in _DECADES for step in (1, 2, 5)}))
_NARROW, _WIDE = 4, 100  # quotients of the axis's ends: even ticks below the first, powers of ten above the second


@dataclass(frozen=True)
class Row:
    """One line of the picture: an interval with the ratios of its rounds, and its text in three parts."""

    place: str
    pair: str
    figures: str
    verdict: str
    low: float
    estimate: float
    high: float
    rounds: Sequence[float]
    margin: float


def make_picture(results: Sequence[Result]) -> Picture | Absent:
    """Return the picture of all comparisons that have a ratio to show."""
    rows = [row for result in results for row in _rows(result, many=len(results) > 1)]
    if not rows:
        return Absent(_reason(results))
    if len(rows) > _MOST_ROWS:
        return Absent(f"{len(rows):,} comparisons are too many to draw; the table has them")
    caption = (
        "Time of the contender over the baseline's, on a logarithmic scale; left of 1 the contender is faster. "
        "Diamond and bar: estimate and interval. Dots: single rounds that count. Shaded: the margin, within which a "
        "difference does not matter."
    )
    times = sentences.name_times(results)
    title = f"Ratio of {times} with its interval"
    return Picture("ratio", title, caption, sentences.describe_basis(results), lambda: _draw(rows, times))


def round_ratios(result: Result, comparison: Comparison) -> list[float]:
    """Return the ratio of median blocks, contender over baseline, of each round that counts."""
    medians = {
        contender.name: verdicts.find_medians(result, contender, comparison.batch_size)
        for contender in result.contenders
    }
    baseline, contender = (medians.get(name, {}) for name in (comparison.baseline, comparison.contender))
    return [contender[number] / baseline[number] for number in baseline if number in contender]


def _rows(result: Result, many: bool) -> Iterator[Row]:
    spec = result.spec
    devices = f", {spec.devices} devices" if spec.devices > 1 else ""
    work = f"{sentences.name_work(spec)} {spec.precision}{devices}" if many else ""
    for comparison in result.comparisons:
        size = comparison.batch_size or (spec.batch_size if many else None)
        batch = f"batch {size:,}" if size else ""
        place = ", ".join(filter(None, (work, batch)))
        ratio = comparison.claimed_ratio
        if ratio is None:
            continue
        estimate, low, high = sentences.format_ratio_figures(ratio)
        yield Row(
            shorten(place, _LONGEST),
            f"{shorten(comparison.contender, 21)} / {shorten(comparison.baseline, 21)}",
            f"{estimate} ({low} to {high})  {comparison.verdict}",
            comparison.verdict,
            ratio.low,
            ratio.estimate,
            ratio.high,
            round_ratios(result, comparison),
            comparison.margin,
        )


def _reason(results: Sequence[Result]) -> str:
    comparisons = [comparison for result in results for comparison in result.comparisons]
    if not comparisons:
        return "nothing was timed"
    return "; ".join(sentences.describe_comparison(comparison) for comparison in comparisons[:10])


def _draw(rows: Sequence[Row], times: str) -> Figure:
    """Draw the rows below one another. The unit of the vertical axis is inches."""
    lines = _lines(rows)
    height = _ROW_INCHES + (len(lines[0]) - 1) * _LINE_INCHES
    figure, (axes,) = make_panels([height * len(rows)], _AXIS_INCHES)
    for index, row in enumerate(rows):
        _draw_row(axes, row, -index * height, "\n".join(lines[index]))
    _scale(axes, [value for row in rows for value in (row.low, row.estimate, row.high, *row.rounds)])
    axes.set_ylim(-height * (len(rows) - 1) - _BELOW_INCHES, height - _BELOW_INCHES)
    axes.set_yticks([])
    axes.spines.left.set_visible(False)
    axes.set_xlabel(f"faster ← {times} / baseline's → slower")
    return figure


def _lines(rows: Sequence[Row]) -> list[list[str]]:
    """Return the text above each row, on as few lines as fit the width, and on equally many for all rows."""
    pairs = [": ".join(filter(None, (row.place, row.pair))) for row in rows]
    one = [[f"{pair}  {row.figures}"] for pair, row in zip(pairs, rows, strict=True)]
    two = [[pair, row.figures] for pair, row in zip(pairs, rows, strict=True)]
    three = [[row.place, row.pair, row.figures] for row in rows]
    return next((each for each in (one, two) if max(len(line) for row in each for line in row) <= _LONGEST), three)


def _draw_row(axes: Axes, row: Row, y: float, said: str) -> None:
    low, estimate, high = (_clipped(value) for value in (row.low, row.estimate, row.high))
    colour = choose_verdict_colour(row.verdict)
    bottom, top = y - _BELOW_INCHES, y + _ABOVE_INCHES
    margin = [1 / (1 + row.margin), 1 + row.margin]
    axes.fill_between(margin, bottom, top, color=find_light("band"), linewidth=0, zorder=0)
    axes.vlines(1, bottom, top, color=find_light("muted"), linewidth=0.8, zorder=1)
    axes.plot([low, high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=3)
    for end, beyond, marker in ((low, row.low < _LIMITS[0], "<"), (high, row.high > _LIMITS[1], ">")):
        axes.plot([end], [y], marker if beyond else "|", color=colour, markersize=6, zorder=3)
    axes.plot([estimate], [y], "D", color=colour, markersize=4.5, zorder=4)
    rounds = [value for value in row.rounds if _LIMITS[0] < value < _LIMITS[1]]
    axes.plot(
        rounds, [y - _DOTS_INCHES] * len(rounds), "o", color=find_light("muted"), markersize=2.5, alpha=0.7, zorder=2
    )
    axes.annotate(
        said,
        (0, y),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        va="bottom",
        annotation_clip=False,
    ).set_in_layout(False)


def _clipped(value: float) -> float:
    return min(max(value, _LIMITS[0]), _LIMITS[1])


def _scale(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xscale("log")
    low, high = min(1.0, *map(_clipped, values)), max(1.0, *map(_clipped, values))
    pad = (high / low) ** 0.06 * 1.01
    if high / low * pad**2 < _NARROW:
        every = list(MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low / pad, high * pad))
    else:
        every = _STEPS if high / low < _WIDE else _DECADES
    # All that is drawn lies between two ticks.
    left = min(low / pad, max((tick for tick in every if tick <= low), default=low))
    right = max(high * pad, min((tick for tick in every if tick >= high), default=high))
    ticks = [float(tick) for tick in every if left <= tick <= right]
    axes.set_xlim(left, right)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
