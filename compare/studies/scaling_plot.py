"""Efficiency and images per second against the number of devices, with intervals and what would be ideal."""

from collections.abc import Mapping, Sequence
from typing import Any

from compare.report import sentences
from compare.report.palette import light
from compare.report.plots.canvas import (
    DASHES,
    MOST_CONTENDERS,
    Absent,
    Axes,
    Figure,
    Picture,
    colour,
    drawable,
    drawn_of,
    label,
    name_lines,
    panels,
    plain_powers,
)
from compare.results.model import Environment
from compare.studies.scaling_report import batch, definition

_EFFICIENCY_INCHES, _SPEED_INCHES, _AXIS_INCHES = 1.3, 1.3, 0.45
_NUDGE = 1.02  # factor on the axis of devices by which contenders lie beside each other
_ROOM = 1.15  # factor of it that is left at its ends

Entry = Mapping[str, Any]


def picture(result: Mapping[str, Any]) -> Picture | Absent:
    """Return the picture of a scaling (`compare.studies.scaling_result`); only what has an efficiency is drawn."""
    names, spec = result["spec"]["contenders"], result["spec"]
    if len(spec["devices"]) == 1:
        return Absent("there is one number of devices only")
    rows = {
        name: [each for each in result["scaling"] if each["contender"] == name and each["efficiency"]]
        for name in names[:MOST_CONTENDERS]
    }
    if not any(rows.values()):
        return Absent("no contender has an efficiency on any number of devices")
    caption = (
        f"Above: efficiency, {definition(result)}, with {sentences.percent(spec['confidence'], 6)} intervals; 1 is "
        f"ideal. Below: images per second; dotted: the ideal, from each contender's own speed on {spec['devices'][0]}."
    ) + drawn_of(len(names))
    device = sentences.name_device(spec["device"], Environment(extra=result["environment"]))
    basis = (
        f"Setting: {spec['mode']} scaling of {spec['workload']} in {spec['precision']}, {batch(spec)}, on "
        f"{device}; {sentences.counted(spec['rounds'], 'round')} of fresh processes on each number "
        "of devices, Welch's t over rounds."
    )
    return Picture("scaling", "Efficiency by number of devices", caption, basis, lambda: _draw(rows, spec["devices"]))


def _draw(rows: Mapping[str, Sequence[Entry]], devices: Sequence[int]) -> Figure:
    from matplotlib.ticker import LogLocator

    figure, (top, bottom) = panels([_EFFICIENCY_INCHES, _SPEED_INCHES], _AXIS_INCHES)
    top.axhline(1, color=light("muted"), linewidth=0.8, zorder=1)
    lines: list[Any] = []
    for index, (name, row) in enumerate(rows.items()):
        if not row:
            continue
        places = [entry["devices"] * _NUDGE ** (index - (len(rows) - 1) / 2) for entry in row]
        found, speeds = [each["efficiency"] for each in row], [each["images_per_second"] for each in row]
        look: dict[str, Any] = {"color": colour(index), "marker": "o", "linestyle": DASHES[index % len(DASHES)]}
        top.plot(places, [each["estimate"] for each in found], **look, zorder=3)
        for place, each in zip(places, found, strict=True):
            top.plot([place] * 2, [drawable(each["low"]), drawable(each["high"])], color=colour(index), zorder=2)
        lines += bottom.plot(places, speeds, **look, label=label(name), zorder=3)
        ideal = [speed / each["estimate"] for speed, each in zip(speeds, found, strict=True)]
        bottom.plot(places, ideal, ":", color=light("muted"), linewidth=0.8, zorder=1)
    least = min(drawable(each["efficiency"]["low"]) for row in rows.values() for each in row)
    top.set_ylim(least - max(0.02, 0.5 * (1 - least)), max(1 + max(0.01, 0.1 * (1 - least)), top.get_ylim()[1]))
    top.set_ylabel("efficiency")
    top.tick_params(labelbottom=False)
    bottom.set_yscale("log")
    low, high = bottom.get_ylim()
    bottom.yaxis.set_major_locator(LogLocator(subs=[1, 2, 5] if high > 5 * low else [1, 1.5, 2, 3, 5, 7], numticks=8))
    plain_powers(bottom)
    bottom.set_ylabel("images/s")
    bottom.set_xlabel("devices")
    for axes in (top, bottom):
        _scale(axes, devices)
    name_lines(bottom, lines)
    return figure


def _scale(axes: Axes, devices: Sequence[int]) -> None:
    """Let the axis of devices be logarithmic, with a tick at each number that was run."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(devices[0] / _ROOM, devices[-1] * _ROOM)
    axes.set_xticks(devices, [str(count) for count in devices])
    axes.set_xticks([], minor=True)
