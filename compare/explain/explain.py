"""The explanation of a comparison, from the profiles of its contenders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.base.interface import KnobValues
from compare.base.profiles import Peaks, Profile, ProfileReply
from compare.explain import findings, host_events, step_table
from compare.explain.findings import Side
from compare.explain.step_table import StepTable, Work
from compare.explain.work_classes import CLASSES, CONVOLUTIONS, IDLE, PRODUCT
from compare.results.explanation import Explanation, Layer, LayerFigures, MeasuredPeaks, WorkClass, WorkFigures

_MOST_LAYERS = 400
_WITH_FLOPS = (*CONVOLUTIONS.values(), PRODUCT)


@dataclass(frozen=True)
class Evidence:
    """What is known about one contender.

    Attributes:
        name, backend: the contender and its framework.
        knobs, settings: its knobs and its effective settings.
        step_seconds: the timed step, None if it was not timed.
        uncaptured: the profile of a step whose kernels start one by one; None if there is none.
        timed: the profile of the step as it is timed, if it is captured.
        reply: the figures of the session that is like the timed one.
        reason: why there is no profile, or a part of it is missing.
    """

    name: str
    backend: str
    knobs: KnobValues
    settings: Mapping[str, Any]
    step_seconds: float | None
    uncaptured: Profile | None
    timed: Profile | None
    reply: ProfileReply | None
    reason: str | None


def explain(contenders: Sequence[Evidence], precision: str) -> Explanation:
    """Return the explanation of contenders that train at one precision on one device."""
    peaks = _combine([each.reply.peaks for each in contenders if each.reply and each.reply.peaks])
    sides = dict[str, Side]()
    reasons = {each.name: each.reason for each in contenders if each.reason}
    for each in contenders:
        side = _make_side(each, peaks)
        if side is None:
            reasons.setdefault(each.name, "it was not profiled")
        else:
            sides[each.name] = side
    tables = {name: side.table for name, side in sides.items()}
    return Explanation(
        step_milliseconds={name: 1e3 * table.step_seconds for name, table in tables.items()},
        attributed_share={name: table.attributed_share for name, table in tables.items()},
        peaks=MeasuredPeaks(
            bandwidth_bytes_per_second=peaks.bandwidth_bytes_per_second,
            flops_per_second={} if peaks.flops_per_second is None else {precision: peaks.flops_per_second},
        ),
        classes=tuple(_make_class(name, tables) for name in CLASSES),
        layers=tuple(_make_layers(tables)[:_MOST_LAYERS]),
        findings=tuple(findings.find(list(sides.values()))),
        host_milliseconds={name: 1e3 * side.host_seconds for name, side in sides.items() if side.device != "cpu"},
        excess_milliseconds={
            name: 1e3 * table.excess_seconds for name, table in tables.items() if table.excess_seconds
        },
        scales={name: table.scale for name, table in tables.items() if table.scale != 1},
        reasons=reasons,
    )


def _combine(measured: Sequence[Peaks]) -> Peaks:
    """Return the largest of each peak: every contender measures the same device."""
    return Peaks(
        max((each.bandwidth_bytes_per_second or 0.0 for each in measured), default=0.0) or None,
        max((each.flops_per_second or 0.0 for each in measured), default=0.0) or None,
    )


def _make_side(each: Evidence, peaks: Peaks) -> Side | None:
    profile = each.uncaptured or each.timed
    if profile is None or each.reply is None:
        return None
    seconds = each.step_seconds or each.reply.step_seconds
    table = step_table.build(
        seconds, profile, each.timed if each.uncaptured else None, each.reply.operations or (), peaks
    )
    host = host_events.read(each.timed or profile)
    return Side(
        each.name, each.backend, table, each.knobs, each.settings, each.reply.host_seconds, host, profile.device
    )


def _make_class(name: str, tables: Mapping[str, StepTable]) -> WorkClass:
    figures = {
        contender: _figures(name, table.classes[name], table.uncaptured.get(name))
        for contender, table in tables.items()
    }
    return WorkClass(name=name, contenders=figures)


def _figures(name: str, work: Work, uncaptured: float | None) -> WorkFigures:
    return WorkFigures(
        milliseconds=1e3 * work.seconds,
        kernels=work.kernels,
        bytes=work.bytes if work.bytes and name != IDLE else None,
        flops=work.flops if name in _WITH_FLOPS else None,
        roofline_share=work.share,
        limit=work.limit,
        uncaptured_milliseconds=None if uncaptured is None or name == IDLE else 1e3 * uncaptured,
    )


def _make_layers(tables: Mapping[str, StepTable]) -> list[Layer]:
    keys = list(dict.fromkeys(key for table in tables.values() for key in table.layers))
    layers = [
        Layer(
            name=" ".join(filter(None, key)),
            contenders={
                contender: _layer_figures(table.layers.get(key, Work())) for contender, table in tables.items()
            },
        )
        for key in keys
    ]
    return sorted(layers, key=_difference, reverse=True)


def _layer_figures(work: Work) -> LayerFigures:
    return LayerFigures(
        milliseconds=1e3 * work.seconds,
        kernels=tuple(name[:200] for name in work.longest_names()),
        roofline_share=work.share,
        limit=work.limit,
    )


def _difference(layer: Layer) -> float:
    times = [figures.milliseconds for figures in layer.contenders.values()]
    return max(times) - min(times)
