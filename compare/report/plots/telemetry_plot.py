"""Draw the GPU's state over time, or the load of other programs by round on a CPU. Void rounds are shaded."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import isfinite, nan

from compare.execution.round_validity import FOREIGN_CORES
from compare.execution.telemetry import SLOWEST_SECONDS
from compare.report import sentences
from compare.report.palette import find_light
from compare.report.plots.canvas import (
    MOST_ROUNDS,
    Absent,
    Axes,
    Figure,
    Picture,
    choose_colour,
    keep_drawable,
    make_panels,
    shade,
)
from compare.results.model import Result
from compare.settings.block_order import list_gpus_of_round

_PANEL_INCHES, _AXIS_INCHES = 0.75, 0.5
_UNSEEN_CORES = 0.005  # a lower bar needs a mark to be seen
_MOST_SAMPLES = 50_000
_APART_SECONDS = 2 * SLOWEST_SECONDS  # a longer gap means that samples were left out
_PANELS = {
    "sm_clock_mhz": "SM clock\nMHz",
    "memory_clock_mhz": "mem. clock\nMHz",
    "temperature_celsius": "temp.\n°C",
    "power_watts": "power\nW",
}

Spans = Mapping[int, tuple[float, float]]
"""Round, from 1, to the start of its first block and the end of its last, in seconds since the run's start."""


def make_picture(result: Result) -> Picture | Absent:
    """Return the picture of the GPU's state, or of other programs' load on a CPU."""
    if not result.spec.rounds:
        return Absent(sentences.explain_missing_rounds([result]))
    return _picture_gpu(result) if result.spec.device == "cuda" else _picture_load(result)


def _picture_gpu(result: Result) -> Picture | Absent:
    telemetry, samples = result.telemetry, result.telemetry.samples
    seconds: Sequence[float] = samples.get("seconds", ())
    series = {
        label: [keep_drawable(value) for value in samples[name]]
        for name, label in _PANELS.items()
        if any(value is not None for value in samples.get(name, ()))
    }
    if telemetry.reason or not series:
        return Absent(telemetry.reason or "no figure of the GPU could be read")
    spans = _find_spans_on_first(result)
    void = result.void_rounds & spans.keys()
    if len(seconds) > _MOST_SAMPLES or len(spans) > MOST_ROUNDS:
        return Absent(f"{len(seconds):,} samples of {len(spans):,} rounds are too many to draw")
    which = "first GPU" if telemetry.others else "GPU"
    caption = (
        f"SM clock, memory clock, temperature and power of the {which}, sampled through NVML "
        f"(n = {len(seconds):,}). Numbers: the start of each of its rounds."
    )
    if void:
        caption += " Shaded: void rounds."
    if telemetry.left_out:
        caption += " Where a line is broken, samples between blocks were left out."
        seconds, series = _break_lines(seconds, series)
    return Picture(
        "telemetry",
        "Telemetry over time",
        caption,
        sentences.describe_basis([result]),
        lambda: _draw(seconds, series, spans, void),
    )


def _break_lines(
    seconds: Sequence[float], series: Mapping[str, Sequence[float]]
) -> tuple[Sequence[float], dict[str, Sequence[float]]]:
    """Return the samples with a NaN, which breaks the line, wherever samples were left out."""
    order = list[int | None]([0])
    for index, (before, after) in enumerate(pairwise(seconds), start=1):
        order += [None, index] if after - before > _APART_SECONDS else [index]

    def reorder(values: Sequence[float]) -> list[float]:
        return [nan if index is None else values[index] for index in order]

    return reorder(seconds), {name: reorder(values) for name, values in series.items()}


def _picture_load(result: Result) -> Picture | Absent:
    loads = zip(result.telemetry.foreign_cores, result.telemetry.idle_cores, strict=False)
    cores = [max(map(keep_drawable, pair)) for pair in loads]  # NaN if the first is
    if not any(value == value for value in cores):
        return Absent("the load of other programs was not recorded")
    if len(cores) > MOST_ROUNDS:
        return Absent(f"{len(cores):,} rounds are too many to draw")
    void, limit = result.void_rounds, result.telemetry.void_limit or FOREIGN_CORES
    caption = (
        "Busy cores while blocks were timed, by round. Counted are other programs, or untimed contenders if they kept "
        f"more cores busy. More than {limit:g} (dashed) voids a round (shaded)."
    )
    return Picture(
        "telemetry",
        "Load by round",
        caption,
        sentences.describe_basis([result]),
        lambda: _draw_load(cores, void, limit),
    )


def _find_spans_on_first(result: Result) -> Spans:
    """Return the spans of the rounds on the first GPU."""
    spec = result.spec
    spans = find_spans(result).items()
    return {n: span for n, span in spans if 0 in (list_gpus_of_round(n - 1, spec.devices, spec.rotation) or range(1))}


def find_spans(result: Result) -> Spans:
    """Return the span of each round over all contenders."""
    spans: dict[int, tuple[float, float]] = {}
    for contender in result.contenders:
        step = contender.step_seconds
        for number, blocks in enumerate(step.windows if step else (), start=1):
            for start, end in blocks:
                first, last = spans.get(number, (start, end))
                spans[number] = min(first, start), max(last, end)
    return spans


def _draw(
    seconds: Sequence[float], series: Mapping[str, Sequence[float]], spans: Spans, void: Collection[int]
) -> Figure:
    figure, all_axes = make_panels([_PANEL_INCHES] * len(series), _AXIS_INCHES)
    for axes, (name, values) in zip(all_axes, series.items(), strict=True):
        axes.plot(seconds, values, color=choose_colour(0), linewidth=0.9)
        axes.set_ylabel(name)
        axes.margins(x=0.01, y=0.15)
        axes.ticklabel_format(useOffset=False, style="plain")
        axes.yaxis.get_major_locator().set_params(nbins=4)
        axes.tick_params(labelbottom=axes is all_axes[-1])
        shade(axes, [span for number, span in spans.items() if number in void])
        starts = [start for start, _ in spans.values()]
        axes.vlines(
            starts, 0, 1, transform=axes.get_xaxis_transform(), color=find_light("rule"), linewidth=0.6, zorder=0.5
        )
    _number_rounds(all_axes[0], spans)
    figure.align_ylabels(all_axes)
    all_axes[-1].set_xlabel("seconds since the run's start")
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
                color=find_light("muted"),
            )


def _draw_load(cores: Sequence[float], void: Collection[int], limit: float) -> Figure:
    figure, (axes,) = make_panels([1.5 * _PANEL_INCHES], _AXIS_INCHES)
    numbers = range(1, len(cores) + 1)
    axes.bar(numbers, cores, width=0.6, color=choose_colour(0), zorder=2)
    unseen = {number: value for number, value in zip(numbers, cores, strict=True) if value < _UNSEEN_CORES}
    axes.plot(
        [*unseen], [*unseen.values()], "_", color=choose_colour(0), markersize=6, markeredgewidth=1.8, clip_on=False
    )
    if isfinite(limit):
        axes.axhline(limit, color=find_light("ink"), linewidth=0.8, linestyle="--", zorder=3)
        axes.annotate(
            "above: void",
            (1, limit),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            fontsize="small",
            bbox={"facecolor": find_light("paper"), "edgecolor": "none", "pad": 1},
            zorder=4,
        )
    axes.set_ylim(0, max(filter(isfinite, [0.01, limit, *cores])) * 1.2)
    axes.set_xlim(0.5, len(cores) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("round")
    axes.set_ylabel("cores")
    shade(axes, [(number - 0.5, number + 0.5) for number in range(1, len(cores) + 1) if number in void])
    return figure
