"""Draw step times by round, in one panel for each contender: every block and the median. Void rounds are shaded."""

from collections.abc import Collection, Mapping, Sequence
from statistics import median

from compare.report import sentences
from compare.report.measurements import time_unit
from compare.report.palette import find_light
from compare.report.plots.canvas import (
    MOST_CONTENDERS,
    MOST_ROUNDS,
    Absent,
    Axes,
    Figure,
    Picture,
    choose_colour,
    make_panels,
    name_limit,
    shade,
    shorten,
)
from compare.results.model import Result

_PANEL_INCHES, _AXIS_INCHES = 1.0, 0.32
_MOST_BLOCKS = 20_000
_SPREAD = 0.5  # a round's blocks lie over this share of the distance between rounds


def make_picture(result: Result) -> Picture | Absent:
    """Return the picture of all step times."""
    samples = {contender.name: contender.samples for contender in result.contenders if any(contender.samples)}
    if not samples:
        return Absent("no steps were timed")
    drawn = dict(list(samples.items())[:MOST_CONTENDERS])
    blocks = sum(len(blocks) for rounds in drawn.values() for blocks in rounds)
    rounds = max(map(len, drawn.values()))
    if blocks > _MOST_BLOCKS or rounds > MOST_ROUNDS:
        return Absent(f"{blocks:,} blocks of {rounds:,} rounds are too many to draw; the CSV file has them")
    places = {contender.name: index for index, contender in enumerate(result.contenders)}
    void = result.void_rounds
    caption = (
        "Time per training step by round of fresh processes. Dots: single blocks of steps, in the order of timing. "
        "Lines: the median of each round. Each panel has its own scale, which does not begin at 0."
    ) + name_limit(len(samples))
    if void:
        caption += " Shaded: void rounds, which count for no ratio."
    invalid = [sentences.describe_comparison(each) for each in result.comparisons if each.verdict == "INVALID"]
    caption = " ".join([caption, *(f"{each}." for each in invalid)])
    return Picture(
        "steps", "Step times by round", caption, sentences.describe_basis([result]), lambda: _draw(drawn, places, void)
    )


def _draw(samples: Mapping[str, Sequence[Sequence[float]]], places: Mapping[str, int], void: Collection[int]) -> Figure:
    figure, all_axes = make_panels([_PANEL_INCHES] * len(samples), _AXIS_INCHES)
    most = max(len(rounds) for rounds in samples.values())
    for axes, (name, rounds) in zip(all_axes, samples.items(), strict=True):
        _draw_panel(axes, rounds, choose_colour(places[name]))
        axes.set_title(shorten(name), color=choose_colour(places[name]), pad=2)
        shade(axes, [(number - 0.5, number + 0.5) for number in range(1, most + 1) if number in void])
        axes.set_xlim(0.5, most + 0.5)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelbottom=axes is all_axes[-1])
    all_axes[-1].set_xlabel("round")
    figure.align_ylabels(all_axes)
    return figure


def _draw_panel(axes: Axes, rounds: Sequence[Sequence[float]], dot_colour: str) -> None:
    scale, unit = time_unit([seconds for blocks in rounds for seconds in blocks])
    numbered = [(number, blocks) for number, blocks in enumerate(rounds, start=1) if blocks]
    offsets = [
        number + _SPREAD * (k + 0.5 - len(blocks) / 2) / len(blocks)
        for number, blocks in numbered
        for k in range(len(blocks))
    ]
    times = [seconds / scale for _, blocks in numbered for seconds in blocks]
    axes.plot(offsets, times, "o", color=dot_colour, markersize=2.2, alpha=0.75, markeredgewidth=0)
    places = [number for number, _ in numbered]
    medians = [median(blocks) / scale for _, blocks in numbered]
    axes.hlines(medians, [x - 0.35 for x in places], [x + 0.35 for x in places], color=find_light("ink"), linewidth=1)
    axes.set_ylabel(f"{unit} per step")
    axes.margins(y=0.15)
