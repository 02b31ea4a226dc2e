"""What all pictures share: their size, for a column of a paper, how lines are named and void rounds marked.

matplotlib is imported where something is drawn: it takes a second, and most commands draw nothing.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from compare.report.palette import SERIES, light
from compare.report.sentences import plain

# matplotlib leaves most keyword arguments without types, so that its own ones help nobody under strict checking.
Axes: TypeAlias = Any
Figure: TypeAlias = Any

WIDTH = 3.3
"""Inches: one column of a paper in two columns."""

DASHES = ("-", (0, (4, 3)), ":", "-.")
MOST_CONTENDERS = 8
"""More are not drawn; every table has them all."""

MOST_ROUNDS = 1000
"""Of more, nothing can be seen in a column's width."""

FONT_POINTS = 8.0
# Tick labels and the axis label, which a legend below the axes must clear.
_LABEL_LINES = 4.5
LETTER_INCHES = 0.065
"""Width of a letter of the mean width."""

_LONGEST_DIRECT = 18
_MOST_WORDS = 10


@dataclass(frozen=True)
class Picture:
    """A picture that can be drawn.

    Attributes:
        name: its file's, without ending.
        title: what it shows, in a few words.
        caption: how it is read.
        basis: on what it rests, for where it stands alone: workload, n, interval, hardware.
        draw: draws it, as a `matplotlib.figure.Figure`.
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


def panels(heights: Sequence[float], rest: float) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of one column's width with panels below one another.

    Args:
        heights: of the panels, inches.
        rest: inches for what stands beside them: axis and titles.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, sum(heights) + rest), layout="constrained")
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return figure, [axes for (axes,) in grid]


def colour(index: int) -> str:
    """Return the colour of the contender of that number."""
    return SERIES[index % len(SERIES)]


def label(text: str, longest: int = 34) -> str:
    """Return text of a result file as a picture may show it: on one line, and cut where it is long."""
    text = plain(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def drawn_of(count: int) -> str:
    """Return what a caption says where a picture does not hold all of so many contenders."""
    return f" The first {MOST_CONTENDERS} of {count} contenders." if count > MOST_CONTENDERS else ""


def shade(axes: Axes, spans: Sequence[tuple[float, float]]) -> None:
    """Mark what is void, spans of the horizontal axis, and make room for that word above what is drawn."""
    if not spans:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.18 * (high - low))
    for start, end in spans:
        axes.axvspan(start, end, color=light("void"), linewidth=0, zorder=0)
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
    """Write each line's label at the right of the axes, where it ends; below them in a legend where labels are long."""
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
    ends = [float(each[np.isfinite(each)][-1]) for each in (np.asarray(line.get_ydata(), float) for line in lines)]
    places = [float(transform.transform((0.0, min(max(end, low), high)))[1]) for end in ends]
    points = axes.figure.get_size_inches()[1] * 72 * axes.get_position().height
    for line, place in zip(lines, _apart(places, 1.25 * FONT_POINTS / points), strict=True):
        text, shown = str(line.get_label()), line.get_color()
        axes.annotate(text, (1.02, place), xycoords="axes fraction", va="center", color=shown, annotation_clip=False)


def plain_powers(axes: Axes) -> None:
    """Write the ticks of a logarithmic vertical axis as plain numbers, few of them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    axes.yaxis.set_major_formatter(FuncFormatter(_plain_number))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def _plain_number(value: float, _: int) -> str:
    return f"{value:g}"


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Return places in the same order, moved no further than needed to be `gap` apart."""
    found = list(places)
    for _ in range(100):
        order = sorted(range(len(found)), key=lambda index: (found[index], index))
        lacking = [(below, above, gap - (found[above] - found[below])) for below, above in itertools.pairwise(order)]
        if all(each <= gap * 1e-3 for _, _, each in lacking):
            break
        for below, above, each in lacking:
            if each > 0:
                found[below] -= each / 2
                found[above] += each / 2
    return found


def drawable(value: float | None) -> float:
    """Return a figure for a line: NaN, which leaves a gap, for None and for what no axis can show."""
    return value if value is not None and abs(value) <= 1e30 else math.nan
