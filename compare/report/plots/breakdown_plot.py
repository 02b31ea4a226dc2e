"""The steps of all contenders as stacked bars by class of work, and the layers with the largest difference."""

from collections.abc import Sequence

from compare.explain.work_classes import IDLE, UNATTRIBUTED
from compare.report import sentences
from compare.report.palette import find_light
from compare.report.plots.canvas import (
    FONT_POINTS,
    MOST_CONTENDERS,
    Absent,
    Figure,
    Picture,
    choose_colour,
    make_panels,
    name_limit,
    shorten,
)
from compare.results.explanation import Explanation, Layer
from compare.results.model import Result

_BAR_INCHES, _AXIS_INCHES, _LEGEND_INCHES = 0.34, 0.75, 0.17
_LAYER_INCHES = 0.3
_SHOWN_LAYERS = 12
_LEAST_SHARE = 0.005
"""The share of the longest step below which a class is drawn with the others."""
_HATCHES = ("", "////", "....", "xxxx")
_COLOURS = 6
_OTHERS = "others"


def make_classes(result: Result) -> Picture | Absent:
    """Return the picture of all steps by class of work."""
    found = result.explanation
    if found is None or not found.step_milliseconds:
        return Absent("no step was explained")
    names = list(found.step_milliseconds)[:MOST_CONTENDERS]
    caption = "Milliseconds of a training step by class of work. The whole bar is the timed step." + name_limit(
        len(found.step_milliseconds)
    )
    basis = f"Setting: {sentences.describe_setting(result)}."
    return Picture("breakdown", "Where a step goes", caption, basis, lambda: _draw_classes(found, names))


def make_layers(result: Result) -> Picture | Absent:
    """Return the picture of the layers with the largest difference."""
    found = result.explanation
    if found is None or not found.layers:
        return Absent("no layer was explained")
    names = list(found.step_milliseconds)[:MOST_CONTENDERS]
    caption = "Milliseconds of the layers and passes that differ most, from a step whose kernels start one by one."
    basis = f"Setting: {sentences.describe_setting(result)}."
    layers = found.layers[:_SHOWN_LAYERS]
    return Picture("layers", "Layers by difference", caption, basis, lambda: _draw_layers(layers, names))


def _draw_classes(found: Explanation, names: Sequence[str]) -> Figure:
    longest = max(found.step_milliseconds[name] for name in names)
    classes = [
        each.name
        for each in found.classes
        if max(each.contenders[name].milliseconds for name in names) >= _LEAST_SHARE * longest
    ]
    values = {
        each.name: [each.contenders[name].milliseconds for name in names]
        for each in found.classes
        if each.name in classes
    }
    rest = [
        sum(each.contenders[name].milliseconds for each in found.classes if each.name not in classes) for name in names
    ]
    if any(rest):
        values[_OTHERS] = rest
    figure, (axes,) = make_panels([_BAR_INCHES * len(names)], _AXIS_INCHES + _LEGEND_INCHES * len(values))
    starts = [0.0] * len(names)
    places = [-index for index in range(len(names))]
    for index, (name, times) in enumerate(values.items()):
        axes.barh(places, times, left=starts, height=0.72, label=name, **_style(name, index))
        starts = [start + time for start, time in zip(starts, times, strict=True)]
    axes.set_yticks(places, [shorten(name, 21) for name in names])
    axes.set_xlabel("ms per step")
    axes.margins(x=0.02)
    figure.legend(loc="outside lower left", frameon=False, fontsize=FONT_POINTS - 1, borderaxespad=0, ncols=1)
    return figure


def _style(name: str, index: int) -> dict[str, str]:
    """Return colour and pattern of a class. Neighbours differ in both, so that no reader needs the colour alone."""
    if name in (IDLE, UNATTRIBUTED, _OTHERS):
        hatch = {IDLE: "", UNATTRIBUTED: "xxxx"}.get(name, "....")
        return {"color": find_light("band"), "hatch": hatch, "edgecolor": find_light("muted"), "linewidth": "0.4"}
    hatch = _HATCHES[(index // _COLOURS) % len(_HATCHES)]
    return {
        "color": choose_colour(index),
        "hatch": hatch,
        "edgecolor": find_light("paper"),
        "linewidth": "0.4",
    }


def _draw_layers(layers: Sequence[Layer], names: Sequence[str]) -> Figure:
    figure, (axes,) = make_panels([_LAYER_INCHES * len(layers) * max(1, len(names) / 2)], _AXIS_INCHES + 0.3)
    height = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [-index + 0.4 - height * (number + 0.5) for index in range(len(layers))]
        times = [layer.contenders[name].milliseconds for layer in layers]
        axes.barh(
            places,
            times,
            height=height,
            label=shorten(name, 21),
            color=choose_colour(number),
            hatch=_HATCHES[number % len(_HATCHES)],
            edgecolor=find_light("paper"),
            linewidth=0.4,
        )
    axes.set_yticks([-index for index in range(len(layers))], [shorten(layer.name, 30) for layer in layers])
    axes.set_xlabel("ms per step")
    axes.legend(loc="lower right", frameon=False, fontsize=FONT_POINTS - 1)
    return figure
