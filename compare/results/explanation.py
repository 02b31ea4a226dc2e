"""Where the time of a step goes, as a result file holds it under `explanation`. Times are milliseconds per step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from compare.base.typed_json import JsonObject


@dataclass(frozen=True, kw_only=True)
class WorkFigures(JsonObject):
    """What one class of work takes in a contender's step.

    Attributes:
        milliseconds: time per step.
        kernels: kernels per step.
        bytes: bytes that these kernels must move, from the shapes of their arguments; None if unknown.
        flops: operations of convolutions and products, from the traced step; None for other classes.
        roofline_share: the least possible time at the measured peaks over the time taken; None if unknown.
        limit: `bytes`, `arithmetic` or `launches`; None if unknown.
        uncaptured_milliseconds: the same of a step whose kernels start one by one; None if the timed one does so too.
    """

    milliseconds: float
    kernels: float
    bytes: float | None
    flops: float | None
    roofline_share: float | None
    limit: str | None = None
    uncaptured_milliseconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class WorkClass(JsonObject):
    """One class of work, by contender."""

    name: str
    contenders: Mapping[str, WorkFigures]


@dataclass(frozen=True, kw_only=True)
class LayerFigures(JsonObject):
    """What one pass of a layer takes in a contender's step, with the names of its longest kernels."""

    milliseconds: float
    kernels: tuple[str, ...]
    roofline_share: float | None = None
    limit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Layer(JsonObject):
    """One pass of a layer, by contender. The layers with the largest difference come first."""

    name: str
    contenders: Mapping[str, LayerFigures]


@dataclass(frozen=True, kw_only=True)
class Finding(JsonObject):
    """What makes a contender slow.

    Attributes:
        contender: whose step it is.
        text: the finding in words.
        knob: the knob that helps, or several joined by `+`, as a tuning takes it; None if there is none.
        predicted_milliseconds: the change of the step that is expected, below zero for a gain; None without a forecast.
        measured_milliseconds: the change that --try measured.
        measured_reason: why it measured none.
    """

    contender: str
    text: str
    knob: str | None
    predicted_milliseconds: float | None
    measured_milliseconds: float | None = None
    measured_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredPeaks(JsonObject):
    """The most that simple loops reached on this device in this run. None or no entry if it was not measured."""

    bandwidth_bytes_per_second: float | None
    flops_per_second: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Explanation(JsonObject):
    """The explanation of a comparison.

    Attributes:
        step_milliseconds: the timed step by contender. The classes of a contender sum to it.
        attributed_share: 1 less the share of the class `unattributed`, by contender.
        peaks: what the device reached.
        classes: work by class.
        layers: work by layer and pass.
        findings: what makes a contender slow, the largest forecast first.
        host_milliseconds: the time in which Python starts the work of a step, by contender. Empty on a CPU, where the
            same call may do the work.
        excess_milliseconds: how much longer the kernels of the profiled step take than the timed step, by contender.
        scales: the factor by which kernels were scaled to the timed step, because the profiler lengthens them.
        reasons: why a contender has no explanation, or lacks a part of it.
    """

    step_milliseconds: Mapping[str, float]
    attributed_share: Mapping[str, float]
    peaks: MeasuredPeaks
    classes: tuple[WorkClass, ...]
    layers: tuple[Layer, ...]
    findings: tuple[Finding, ...]
    host_milliseconds: Mapping[str, float] = field(default_factory=dict[str, float])
    excess_milliseconds: Mapping[str, float] = field(default_factory=dict[str, float])
    scales: Mapping[str, float] = field(default_factory=dict[str, float])
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
