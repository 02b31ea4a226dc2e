"""Draw efficiency and images per second against the number of devices, with intervals and the ideal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from compare.report import sentences
from compare.report.palette import find_light
from compare.report.plots.canvas import (
    DASHES,
    MOST_CONTENDERS,
    Absent,
    Axes,
    Figure,
    Picture,
    choose_colour,
    keep_drawable,
    make_panels,
    name_limit,
    name_lines,
    shorten,
    write_plain_powers,
)
from compare.studies.scaling_model import Entry, Scaling
from compare.studies.scaling_report import define_efficiency, describe_batch, describe_device

_EFFICIENCY_INCHES, _SPEED_INCHES, _AXIS_INCHES = 1.3, 1.3, 0.45
_NUDGE = 1.02  # factor between contenders on the axis of devices
_ROOM = 1.15  # factor at both ends of that axis


def make_picture(scaling: Scaling) -> Picture | Absent:
    """Return the picture of a scaling. Only entries with an efficiency are drawn."""
    spec = scaling.spec
    names, devices = spec.contenders, spec.devices
    if len(devices) == 1:
        return Absent("there is one number of devices only")
    rows = {
        name: [entry for entry in scaling.scaling if entry.contender == name and entry.efficiency]
        for name in names[:MOST_CONTENDERS]
    }
    if not any(rows.values()):
        return Absent("no contender has an efficiency on any number of devices")
    caption = (
        f"Above: efficiency, {define_efficiency(scaling)}, with {sentences.format_percent(spec.confidence, 6)} "
        f"intervals; 1 is ideal. Below: images per second; dotted: the ideal, from each contender's own "
        f"speed on {devices[0]}."
    ) + name_limit(len(names))
    basis = (
        f"Setting: {spec.mode} scaling of {spec.workload} in {spec.precision}, {describe_batch(spec)}, on "
        f"{describe_device(scaling)}; {sentences.count_noun(spec.rounds, 'round')} of fresh processes on each number "
        "of devices, Welch's t over rounds."
    )
    return Picture("scaling", "Efficiency by number of devices", caption, basis, lambda: _draw(rows, devices))


def _draw(rows: Mapping[str, Sequence[Entry]], devices: Sequence[int]) -> Figure:
    from matplotlib.ticker import LogLocator

    figure, (top, bottom) = make_panels([_EFFICIENCY_INCHES, _SPEED_INCHES], _AXIS_INCHES)
    top.axhline(1, color=find_light("muted"), linewidth=0.8, zorder=1)
    lines: list[Any] = []
    for index, (name, row) in enumerate(rows.items()):
        if not row:
            continue
        places = [entry.devices * _NUDGE ** (index - (len(rows) - 1) / 2) for entry in row]
        speeds = [entry.images_per_second or math.nan for entry in row]
        ratios = [entry.efficiency for entry in row if entry.efficiency]
        look: dict[str, Any] = {"color": choose_colour(index), "marker": "o", "linestyle": DASHES[index % len(DASHES)]}
        top.plot(places, [ratio.estimate for ratio in ratios], **look, zorder=3)
        for place, ratio in zip(places, ratios, strict=True):
            top.plot(
                [place] * 2, [keep_drawable(ratio.low), keep_drawable(ratio.high)], color=choose_colour(index), zorder=2
            )
        lines += bottom.plot(places, speeds, **look, label=shorten(name), zorder=3)
        ideal = [speed / ratio.estimate for speed, ratio in zip(speeds, ratios, strict=True)]
        bottom.plot(places, ideal, ":", color=find_light("muted"), linewidth=0.8, zorder=1)
    least = min(keep_drawable(entry.efficiency.low) for row in rows.values() for entry in row if entry.efficiency)
    top.set_ylim(least - max(0.02, 0.5 * (1 - least)), max(1 + max(0.01, 0.1 * (1 - least)), top.get_ylim()[1]))
    top.set_ylabel("efficiency")
    top.tick_params(labelbottom=False)
    bottom.set_yscale("log")
    low, high = bottom.get_ylim()
    bottom.yaxis.set_major_locator(LogLocator(subs=[1, 2, 5] if high > 5 * low else [1, 1.5, 2, 3, 5, 7], numticks=8))
    write_plain_powers(bottom)
    bottom.set_ylabel("images/s")
    bottom.set_xlabel("devices")
    for axes in (top, bottom):
        _scale_devices(axes, devices)
    name_lines(bottom, lines)
    return figure


def _scale_devices(axes: Axes, devices: Sequence[int]) -> None:
    """Make the axis of devices logarithmic, with a tick at each number of devices."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(devices[0] / _ROOM, devices[-1] * _ROOM)
    axes.set_xticks(devices, [str(count) for count in devices])
    axes.set_xticks([], minor=True)
