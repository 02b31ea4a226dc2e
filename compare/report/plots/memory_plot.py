"""The memory figures as bars, grouped by definition, with their values."""

from collections.abc import Sequence

from compare.machine.memory import DEFINITIONS
from compare.report import sentences
from compare.report.measurements import format_mebibytes, list_memory_figures, name_memory_figure
from compare.report.palette import find_light
from compare.report.plots.canvas import (
    LETTER_INCHES,
    MOST_CONTENDERS,
    WIDTH,
    Absent,
    Axes,
    Figure,
    Picture,
    choose_colour,
    make_panels,
    name_limit,
    shorten,
)
from compare.results.model import Contender, Result

_BAR_INCHES, _AXIS_INCHES = 0.19, 0.4
_GAP = 0.3  # between definitions, as a share of a bar


def make_picture(result: Result) -> Picture | Absent:
    """Return the picture of all measured memory figures."""
    drawn = result.contenders[:MOST_CONTENDERS]
    figures = list_memory_figures(drawn)
    if not figures:
        return Absent("no memory figure was measured")
    meanings = " ".join(f"{name_memory_figure(name).capitalize()}: {DEFINITIONS[name]}." for name in figures)
    some = name_limit(len(result.contenders))
    caption = f"Memory of one training process, measured in a separate pass.{some} {meanings}"
    basis = f"Setting: {sentences.describe_setting(result)}; one process each (n = 1)."
    return Picture("memory", "Memory by definition", caption, basis, lambda: _draw(drawn, figures))


def _draw(contenders: Sequence[Contender], figures: Sequence[str]) -> Figure:
    rows = len(figures) * (len(contenders) + 1 + _GAP)
    figure, (axes,) = make_panels([_BAR_INCHES * rows], _AXIS_INCHES)
    y, right = 0.0, 1.0
    for name in figures:
        axes.annotate(
            name_memory_figure(name),
            (0, y),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold",
        )
        for index, contender in enumerate(contenders):
            y -= 1
            value = contender.memory.figure(name) if contender.memory else None
            size, length = _draw_bar(axes, y, value, shorten(contender.name, 21), choose_colour(index))
            right = max(right, size / (1 - LETTER_INCHES * (length + 1) / WIDTH))
        y -= 1 + _GAP
    axes.axvline(0, color=find_light("muted"), linewidth=0.8)
    axes.set_ylim(y + 0.3 + _GAP, 0.7)
    axes.set_yticks([])
    axes.spines.left.set_visible(False)
    axes.margins(x=0.0)
    low, _ = axes.get_xlim()
    axes.set_xlim(min(0.0, low * 1.1), max(right, -0.1 * low))
    axes.set_xlabel("MiB")
    axes.xaxis.get_major_locator().set_params(nbins=5)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    return figure


def _draw_bar(axes: Axes, y: float, value: int | None, name: str, bar_colour: str) -> tuple[float, int]:
    """Draw one bar with its text. Return the bar's end in MiB and the length of the text."""
    text, size = f"{name}: not available", 0.0
    if value is not None:
        text, size = f"{name} {format_mebibytes(value)}", value / 2**20
        axes.barh([y], [size], height=0.72, color=bar_colour)
    axes.annotate(
        text,
        (max(size, 0.0), y),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        color=find_light("muted") if value is None else find_light("ink"),
    ).set_in_layout(False)
    return max(size, 0.0), len(text)
