"""Throughput against the latency of single requests, with a line for each contender over its batch sizes."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from compare.report import sentences
from compare.report.plots.canvas import (
    MOST_CONTENDERS,
    Absent,
    Figure,
    Picture,
    choose_colour,
    make_panels,
    name_limit,
    name_lines,
    shorten,
    write_plain_ticks,
)
from compare.results.model import Contender, Result

_PANEL_INCHES, _AXIS_INCHES = 1.9, 0.45
_ABOVE: Mapping[str, Any] = {"xytext": (0, 4), "ha": "center", "va": "bottom"}
_BESIDE: Mapping[str, Any] = {"xytext": (5, 0), "ha": "left", "va": "center"}
_BELOW: Mapping[str, Any] = {"xytext": (0, -4), "ha": "center", "va": "top"}


def make_picture(result: Result) -> Picture | Absent:
    """Return the picture of all batch sizes of all contenders."""
    drawn = [contender for contender in result.contenders[:MOST_CONTENDERS] if _find_points(contender)]
    if not drawn:
        return Absent("no requests were timed")
    caption = (
        "Images per second of requests that do not wait for one another, against the median time of a request that is "
        f"waited for, at batch {', '.join(map(str, result.spec.batch_sizes or ()))} along each line."
        + name_limit(len(result.contenders))
    )
    basis = sentences.describe_basis([result])
    return Picture("throughput", "Throughput against latency", caption, basis, lambda: _draw(drawn))


def _find_points(contender: Contender) -> list[tuple[int, float, float]]:
    """Return batch size, milliseconds and images per second, by batch size."""
    points = [
        (int(size), 1e3 * latency.p50, latency.images_per_second)
        for size, latency in (contender.latency or {}).items()
        if latency.p50 and latency.images_per_second
    ]
    return sorted(points)


def _choose_place(rate: float, rates: Sequence[float]) -> Mapping[str, Any]:
    """Return where a batch size stands, so that close points of several contenders keep theirs apart."""
    if rate == max(rates):
        return _ABOVE
    return _BELOW if rate == min(rates) else _BESIDE


def _draw(contenders: Sequence[Contender]) -> Figure:
    figure, (axes,) = make_panels([_PANEL_INCHES], _AXIS_INCHES)
    lines: list[object] = []
    rates_by_size: defaultdict[int, list[float]] = defaultdict(list)
    points = [_find_points(contender) for contender in contenders]
    for size, _, rate in itertools.chain(*points):
        rates_by_size[size].append(rate)
    for index, contender in enumerate(contenders):
        sizes, milliseconds, rates = zip(*points[index], strict=True)
        label, colour = shorten(contender.name), choose_colour(index)
        lines += axes.plot(milliseconds, rates, color=colour, marker="o", markersize=3, label=label)
        for size, x, y in zip(sizes, milliseconds, rates, strict=True):
            place = _choose_place(y, rates_by_size[size])
            axes.annotate(str(size), (x, y), textcoords="offset points", color=colour, fontsize="small", **place)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(0.12)
    write_plain_ticks(axes.xaxis)
    write_plain_ticks(axes.yaxis)
    axes.set_xlabel("p50 of a request (ms)")
    axes.set_ylabel("images/s")
    name_lines(axes, lines)
    return figure
