"""The parts that all pictures share: the size of a paper's column, colours, labels of lines, marks of void rounds.

matplotlib is imported where something is drawn. Its import takes a second, and most commands draw nothing.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from compare.report.palette import SERIES, find_light
from compare.report.sentences import make_plain

# matplotlib leaves most keyword arguments without types, so its own types fail a strict check.
Axes: TypeAlias = Any
Figure: TypeAlias = Any

WIDTH = 3.3
"""Inches: one column of a paper in two columns."""

DASHES = ("-", (0, (4, 3)), ":", "-.")
MOST_CONTENDERS = 8
"""Pictures leave out further contenders. Tables have all."""

MOST_ROUNDS = 1000
"""More rounds cannot be told apart in a column's width."""

FONT_POINTS = 8.0
# Tick labels and the axis label, which a legend below the axes must clear.
_LABEL_LINES = 4.5
LETTER_INCHES = 0.065
"""Mean width of a letter."""

_LONGEST_DIRECT = 18
_MOST_WORDS = 10


@dataclass(frozen=True)
class Picture:
    """A picture that can be drawn.

    Attributes:
        name: the file's name without its suffix.
        title: a few words.
        caption: how to read the picture.
        basis: workload, n, interval and hardware, for a picture that stands alone.
        draw: return the picture as a `matplotlib.figure.Figure`.
    """

    name: str
    title: str
    caption: str
    basis: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Absent:
    """The reason why there is nothing to draw."""

    reason: str


def make_panels(heights: Sequence[float], rest: float) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of one column's width with panels below one another.

    Args:
        heights: inches of each panel.
        rest: inches for the axis and the titles.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, sum(heights) + rest), layout="constrained")
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return figure, [axes for (axes,) in grid]


def choose_colour(index: int) -> str:
    """Return the colour of a contender by its number, from 0."""
    return SERIES[index % len(SERIES)]


def choose_verdict_colour(verdict: str) -> str:
    """Return the colour of an interval with a verdict. Its text names the verdict too."""
    return choose_colour({"FASTER": 0, "SLOWER": 1}.get(verdict, 2))


def shorten(text: str, longest: int = 34) -> str:
    """Return text of a result file on one line, cut if it is long."""
    text = make_plain(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def name_limit(count: int) -> str:
    """Return a sentence for the caption if a picture leaves contenders out, else an empty text."""
    return f" The first {MOST_CONTENDERS} of {count} contenders." if count > MOST_CONTENDERS else ""


def shade(axes: Axes, spans: Sequence[tuple[float, float]]) -> None:
    """Shade void spans of the horizontal axis, and make room above the lines for the word."""
    if not spans:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.18 * (high - low))
    for start, end in spans:
        axes.axvspan(start, end, color=find_light("void"), linewidth=0, zorder=0)
        if len(spans) <= _MOST_WORDS:
            axes.annotate(
                "void",
                ((start + end) / 2, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, -1),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize="small",
            )


def name_lines(axes: Axes, lines: Sequence[Any]) -> None:
    """Write each line's label at the right of the axes, where the line ends. Long labels go into a legend below."""
    if max(len(str(line.get_label())) for line in lines) > _LONGEST_DIRECT:
        from matplotlib.transforms import offset_copy

        below = offset_copy(axes.transAxes, axes.figure, y=-_LABEL_LINES * FONT_POINTS, units="points")
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=below,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            fontsize="medium",
        )
        return
    low, high = axes.get_ylim()
    transform = axes.transData + axes.transAxes.inverted()
    curves = [np.asarray(line.get_ydata(), float) for line in lines]
    ends = [float(curve[np.isfinite(curve)][-1]) for curve in curves]
    places = [float(transform.transform((0.0, min(max(end, low), high)))[1]) for end in ends]
    points = axes.figure.get_size_inches()[1] * 72 * axes.get_position().height
    for line, place in zip(lines, _spread_out(places, 1.25 * FONT_POINTS / points), strict=True):
        text, ink = str(line.get_label()), line.get_color()
        axes.annotate(text, (1.02, place), xycoords="axes fraction", va="center", color=ink, annotation_clip=False)


def write_plain_powers(axes: Axes) -> None:
    """Write the ticks of a logarithmic vertical axis as plain numbers, few of them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    axes.yaxis.set_major_formatter(FuncFormatter(_plain_number))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def write_plain_ticks(axis: Any) -> None:
    """Write the ticks of a logarithmic axis as plain numbers: 1, 2 and 5 of every power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(_plain_number))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _plain_number(value: float, _: int) -> str:
    return f"{value:,.12g}"


def _spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Return places in the same order, moved no further than needed to be `gap` apart."""
    moved = list(places)
    for _ in range(100):
        order = sorted(range(len(moved)), key=lambda index: (moved[index], index))
        overlaps = [(below, above, gap - (moved[above] - moved[below])) for below, above in itertools.pairwise(order)]
        if all(overlap <= gap * 1e-3 for _, _, overlap in overlaps):
            break
        for below, above, overlap in overlaps:
            if overlap > 0:
                moved[below] -= overlap / 2
                moved[above] += overlap / 2
    return moved


def keep_drawable(value: float | None) -> float:
    """Return a value for a line. None and values beyond any axis become NaN, which leaves a gap."""
    return value if value is not None and abs(value) <= 1e30 else math.nan
