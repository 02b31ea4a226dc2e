"""What went on beside the contenders while rounds were timed, void ones shaded: the GPU's state, or other programs."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from math import nan
from typing import Any

from compare.execution.round_validity import FOREIGN_CORES
from compare.execution.telemetry import SLOWEST_SECONDS
from compare.report import sentences
from compare.report.palette import light
from compare.report.plots.canvas import MOST_ROUNDS, Absent, Axes, Figure, Picture, colour, drawable, panels, shade
from compare.settings.block_order import find_stored_gpus

_PANEL_INCHES, _AXIS_INCHES = 0.75, 0.5
_UNSEEN_CORES = 0.005  # a bar this low needs a mark
_MOST_SAMPLES = 50_000
_APART_SECONDS = 2 * SLOWEST_SECONDS  # so far apart are two samples only where others were left out between them
_PANELS = {
    "sm_clock_mhz": "SM clock\nMHz",
    "memory_clock_mhz": "memory\nMHz",
    "temperature_celsius": "chip\n°C",
    "power_watts": "power\nW",
}

Spans = Mapping[int, tuple[float, float]]
"""Round, the first being 1, to when its first block began and its last ended, seconds since the run's start."""


def picture(result: Mapping[str, Any]) -> Picture | Absent:
    """Return the picture of the GPU's state over time, or on a CPU that of other programs' load by round."""
    telemetry = result.get("telemetry")
    if telemetry is None:
        return Absent("the result has no telemetry: samestep did not yet watch the machine when it was made")
    if not result["spec"]["rounds"]:
        return Absent(sentences.nothing_timed([result]))
    return _gpu(result, telemetry) if result["spec"]["device"] == "cuda" else _load(result, telemetry)


def _gpu(result: Mapping[str, Any], telemetry: Mapping[str, Any]) -> Picture | Absent:
    samples: Mapping[str, Any] = telemetry["samples"]
    seconds: Sequence[float] = samples.get("seconds", ())
    series = {
        label: [drawable(value) for value in samples[name]]
        for name, label in _PANELS.items()
        if any(value is not None for value in samples.get(name, ()))
    }
    if telemetry["reason"] or not series:
        return Absent(telemetry["reason"] or "no figure of the GPU could be read")
    spans = _on_first(result)
    void = {each["round"] for each in result["voided"]} & spans.keys()
    if len(seconds) > _MOST_SAMPLES or len(spans) > MOST_ROUNDS:
        return Absent(f"{len(seconds):,} samples of {len(spans):,} rounds are too many to draw")
    which = "first GPU" if telemetry.get("others") else "GPU"
    caption = (
        f"SM clock, memory clock, temperature and power of the {which}, sampled through NVML "
        f"(n = {len(seconds):,}); numbers: rounds on it, shaded: void ones."
    )
    if telemetry.get("left_out"):
        caption += " Where a line is broken, samples between blocks were left out."
        seconds, series = _broken(seconds, series)
    if not spans:
        caption += " When each round was timed is not in the result."
    return Picture(
        "telemetry",
        "Telemetry over time",
        caption,
        sentences.basis([result]),
        lambda: _draw(seconds, series, spans, void),
    )


def _broken(
    seconds: Sequence[float], series: Mapping[str, Sequence[float]]
) -> tuple[Sequence[float], dict[str, Sequence[float]]]:
    """Return samples with one that is NaN, which breaks a line, wherever others lay between two."""
    order = list[int | None]([0])
    for index, (before, after) in enumerate(pairwise(seconds), start=1):
        order += [None, index] if after - before > _APART_SECONDS else [index]

    def ordered(values: Sequence[float]) -> list[float]:
        return [nan if index is None else values[index] for index in order]

    return ordered(seconds), {name: ordered(values) for name, values in series.items()}


def _load(result: Mapping[str, Any], telemetry: Mapping[str, Any]) -> Picture | Absent:
    both = [telemetry.get(name, ()) for name in ("foreign_cores", "idle_cores")]
    cores = [max(map(drawable, each)) for each in zip_longest(*both)]  # NaN where the first is
    if not any(value == value for value in cores):
        return Absent("the load of other programs was not recorded")
    if len(cores) > MOST_ROUNDS:
        return Absent(f"{len(cores):,} rounds are too many to draw")
    void = {each["round"] for each in result["voided"]}
    caption = (
        f"Cores that other programs, or contenders that were not timed, kept busy while blocks were timed, whichever "
        f"kept more, by round, a mark at 0 for none; more than {FOREIGN_CORES:g} (dashed) voids a round, shaded."
    )
    return Picture("telemetry", "Load by round", caption, sentences.basis([result]), lambda: _draw_load(cores, void))


def _on_first(result: Mapping[str, Any]) -> Spans:
    """Return when each round was timed that was on the first GPU."""
    found = rounds(result)
    used = {number: find_stored_gpus(result["spec"], number - 1) or range(1) for number in found}
    return {number: span for number, span in found.items() if 0 in used[number]}


def rounds(result: Mapping[str, Any]) -> Spans:
    """Return when each round was timed, over all contenders; empty for a result that does not tell."""
    found: dict[int, tuple[float, float]] = {}
    for contender in result["contenders"]:
        step: Mapping[str, Any] = contender["step_seconds"] or {}
        windows: Sequence[Sequence[Sequence[float]]] = step.get("windows", ())
        for number, blocks in enumerate(windows, start=1):
            for start, end in blocks:
                first, last = found.get(number, (start, end))
                found[number] = min(first, start), max(last, end)
    return found


def _draw(seconds: Sequence[float], series: Mapping[str, Sequence[float]], spans: Spans, void: set[int]) -> Figure:
    figure, found = panels([_PANEL_INCHES] * len(series), _AXIS_INCHES)
    for axes, (name, values) in zip(found, series.items(), strict=True):
        axes.plot(seconds, values, color=colour(0), linewidth=0.9)
        axes.set_ylabel(name)
        axes.margins(x=0.01, y=0.15)
        axes.ticklabel_format(useOffset=False, style="plain")
        axes.yaxis.get_major_locator().set_params(nbins=4)
        axes.tick_params(labelbottom=axes is found[-1])
        shade(axes, [span for number, span in spans.items() if number in void])
        starts = [start for start, _ in spans.values()]
        axes.vlines(starts, 0, 1, transform=axes.get_xaxis_transform(), color=light("rule"), linewidth=0.6, zorder=0.5)
    _number_rounds(found[0], spans)
    figure.align_ylabels(found)
    found[-1].set_xlabel("seconds since the run's start")
    return figure


def _number_rounds(axes: Axes, spans: Spans) -> None:
    every = max(1, len(spans) // 10)
    for number, (start, _) in spans.items():
        if (number - 1) % every == 0:
            axes.annotate(
                str(number),
                (start, 1),
                xycoords=("data", "axes fraction"),
                xytext=(1, 0),
                textcoords="offset points",
                fontsize="small",
                color=light("muted"),
            )


def _draw_load(cores: Sequence[float], void: set[int]) -> Figure:
    figure, (axes,) = panels([1.5 * _PANEL_INCHES], _AXIS_INCHES)
    numbers = range(1, len(cores) + 1)
    axes.bar(numbers, cores, width=0.6, color=colour(0), zorder=2)
    unseen = {number: value for number, value in zip(numbers, cores, strict=True) if value < _UNSEEN_CORES}
    axes.plot([*unseen], [*unseen.values()], "_", color=colour(0), markersize=6, markeredgewidth=1.8, clip_on=False)
    axes.axhline(FOREIGN_CORES, color=light("ink"), linewidth=0.8, linestyle="--", zorder=3)
    axes.annotate(
        "above: void",
        (1, FOREIGN_CORES),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="right",
        fontsize="small",
        bbox={"facecolor": light("paper"), "edgecolor": "none", "pad": 1},
        zorder=4,
    )
    axes.set_ylim(0, max([FOREIGN_CORES, *(value for value in cores if value == value)]) * 1.2)
    axes.set_xlim(0.5, len(cores) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("round")
    axes.set_ylabel("cores")
    shade(axes, [(number - 0.5, number + 0.5) for number in range(1, len(cores) + 1) if number in void])
    return figure
