"""What makes a contender slow, derived from the tables of all contenders.

Each rule compares one contender with the least that another one spends, and forecasts the gain of a knob. A finding
needs a share of the step that noise does not reach.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from compare.base.interface import KnobValues
from compare.base.knobs import KNOBS
from compare.explain import work_classes
from compare.explain.host_events import HostEvents
from compare.explain.step_table import OUTSIDE, StepTable
from compare.explain.work_classes import (
    CONVOLUTIONS,
    IDLE,
    LAYOUT,
    NORMALISATION,
    OPTIMIZER,
    POINTWISE,
    POOL,
    PRODUCT,
    REDUCTION,
)
from compare.results.explanation import Finding

_LEAST_SHARE = 0.02
"""The share of the step that a finding must concern."""
_LARGE_SHARE, _FACTOR = 0.1, 2.0
"""The share and the factor from which a class or a layer without a knob is a finding."""
_IDLE_SHARE = 0.1
_LEAST_LAG = 0.05
"""The part of its step by which a contender must be slower than the fastest one to be asked for a slow layer."""
_TOGETHER = ("compile", "channels-last")
"""Knobs that are suggested together."""
_CAPTURE = "graph-capture"


@dataclass(frozen=True)
class Side:
    """One contender, as the rules see it.

    Attributes:
        name: the contender.
        backend: its framework.
        table: its step.
        knobs: its knobs.
        settings: its effective settings.
        host_seconds: seconds per step in which Python starts the step's work.
        host: its host's events in the profiled steps.
        device: `cpu` or `cuda`.
    """

    name: str
    backend: str
    table: StepTable
    knobs: KnobValues
    settings: Mapping[str, Any]
    host_seconds: float
    host: HostEvents
    device: str

    def can_switch(self, knob: str) -> bool:
        """Return whether a knob is off, and the backend can switch it on for this device."""
        definition = KNOBS[knob]
        fits = definition.required_device in (None, self.device)
        return fits and definition.is_switch(self.backend) and self.knobs.get(knob) is False


class Cause(NamedTuple):
    """What takes time, the knob that helps, and the seconds per step that it should gain."""

    text: str
    knob: str | None
    gain: float | None


Rule = Callable[[Side, Sequence[Side]], Iterator[Cause]]


def find(sides: Sequence[Side]) -> list[Finding]:
    """Return the findings of all contenders, the largest forecast first."""
    findings = list[Finding]()
    for side in sides:
        causes = _find_causes(side, [other for other in sides if other is not side])
        findings += [_write(side, _lift_host_limit(side, cause)) for cause in _join_cures(causes)]
    return sorted(findings, key=lambda finding: finding.predicted_milliseconds or 0.0)


def _find_causes(side: Side, others: Sequence[Side]) -> list[Cause]:
    causes = [cause for rule in RULES for cause in rule(side, others)]
    lag = side.table.step_seconds - min((other.table.step_seconds for other in others), default=0.0)
    if not others or lag < _LEAST_LAG * side.table.step_seconds:
        return causes
    if sum(cause.gain or 0.0 for cause in causes) < 0.5 * lag:  # else a layer would tell the same again
        layers = list(_slow_layers(side, others))
        causes += layers or ([] if causes else _slow_classes(side, others))
    return causes


def _join_cures(causes: Sequence[Cause]) -> list[Cause]:
    """Join the causes whose knobs help together. Compiled kernels keep NHWC between convolutions, so gains add up."""
    joined = [cause for cause in causes if cause.knob in _TOGETHER]
    if len(joined) < 2:
        return list(causes)
    knobs = "+".join(knob for knob in _TOGETHER if any(cause.knob == knob for cause in joined))
    both = Cause(", and ".join(cause.text for cause in joined), knobs, sum(cause.gain or 0.0 for cause in joined))
    return [both, *(cause for cause in causes if cause not in joined)]


def _lift_host_limit(side: Side, cause: Cause) -> Cause:
    """Add graph capture if Python may hide the gain of a knob."""
    text, knob, gain = cause
    if not knob or gain is None or _CAPTURE in knob or not side.can_switch(_CAPTURE):
        return cause
    if side.host.waits or side.host_seconds <= side.table.step_seconds - gain:
        return cause
    host = _milliseconds(side.host_seconds)
    return Cause(f"{text}; Python took {host} to start this step, which may hide the gain", f"{knob}+{_CAPTURE}", gain)


def _write(side: Side, cause: Cause) -> Finding:
    """Return a finding. Its text ends with the knob and the forecast."""
    text, knob, gain = cause
    if gain is not None:
        text = f"{text}: {f'{knob}, about' if knob else 'about'} -{_milliseconds(gain)}"
    return Finding(
        contender=side.name,
        text=text,
        knob=knob,
        predicted_milliseconds=None if gain is None else -1e3 * gain,
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _of_step(side: Side, seconds: float) -> str:
    return f"{_milliseconds(seconds)} of {_milliseconds(side.table.step_seconds)}"


def _matters(side: Side, seconds: float, share: float = _LEAST_SHARE) -> bool:
    return seconds >= share * side.table.step_seconds


def _least(others: Sequence[Side], *names: str) -> float:
    """Return the least seconds that another contender spends in some classes, 0 without another."""
    return min((other.table.seconds(*names) for other in others), default=0.0)


def _layout(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    seconds = side.table.classes[LAYOUT].seconds - side.table.casts
    gain = seconds - max(0.0, min((o.table.classes[LAYOUT].seconds - o.table.casts for o in others), default=0.0))
    if not _matters(side, gain):
        return
    knob = "channels-last" if side.can_switch("channels-last") and side.device == "cuda" else None
    if knob or _matters(side, gain, _LARGE_SHARE):
        yield Cause(f"copies and changes of memory order take {_of_step(side, seconds)}", knob, gain)


def _casts(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    gain = side.table.casts - min((other.table.casts for other in others), default=0.0)
    if _matters(side, gain):
        knob = "compile" if side.can_switch("compile") else None
        yield Cause(f"changes of dtype take {_of_step(side, side.table.casts)}", knob, gain)


def _unfused(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    names = (NORMALISATION, POOL, POINTWISE, REDUCTION)
    gain = side.table.seconds(*names) - _least(others, *names)
    if others and side.device == "cuda" and side.can_switch("compile") and _matters(side, gain, _LARGE_SHARE):
        count = sum(side.table.classes[name].kernels for name in names)
        text = f"{', '.join(names)} take {_of_step(side, side.table.seconds(*names))} in {count:.0f} kernels"
        yield Cause(f"{text} that a compiler would fuse{_name_layer(side, others, gain)}", "compile", gain)


def _name_layer(side: Side, others: Sequence[Side], gain: float) -> str:
    """Name the layer that makes most of a gain by itself, after a comma."""
    excess = {layer: seconds - least for layer, (seconds, least) in _compare_layers(side, others).items()}
    largest = max(excess, key=lambda name: excess[name], default="")
    return f", mostly in layer {largest}" if largest and excess[largest] >= 0.5 * gain else ""


def _tf32(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    faster = [other for other in others if other.settings.get("tf32") and side.settings.get("tf32") is False]
    if not faster:
        return
    names = (*CONVOLUTIONS.values(), PRODUCT)
    gain = side.table.seconds(*names) - _least(faster, *names)
    if _matters(side, gain):
        text = (
            f"products compute in full float32, and in {faster[0].name} in TF32. They take "
            f"{_of_step(side, side.table.seconds(*names))}. --precision tf32 helps"
        )
        yield Cause(text, None, gain)


def _kernel_search(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    if not side.can_switch("kernel-search"):
        return
    names = tuple(CONVOLUTIONS.values())
    gain = side.table.seconds(*names) - _least(others, *names)
    if others and _matters(side, gain, 0.05):
        text = f"convolutions take {_of_step(side, side.table.seconds(*names))}, with kernels that no search has chosen"
        yield Cause(text, "kernel-search", gain)


def _optimizer(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    work = side.table.classes[OPTIMIZER]
    gain = work.seconds - _least(others, OPTIMIZER)
    if side.can_switch("fused-optimizer") and work.kernels > 4 and _matters(side, gain):
        text = f"the update runs {work.kernels:.0f} kernels and takes {_of_step(side, work.seconds)}"
        yield Cause(text, "fused-optimizer", gain)


def _synchronisation(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    del others
    if side.host.waits and _matters(side, side.table.classes[IDLE].seconds):
        names = ", ".join(f"{name} {count:.0f} times" for name, count in side.host.waits.items())
        idle = side.table.classes[IDLE].seconds
        text = f"Python waits for the device within each step ({names}); the device is idle for {_of_step(side, idle)}"
        yield Cause(text, None, idle)


def _host(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    table, idle = side.table, side.table.classes[IDLE].seconds
    if side.host.gap_seconds >= max(_IDLE_SHARE * table.step_seconds, 5e-4) and idle >= 0.5 * side.host.gap_seconds:
        gap = min(side.host.gap_seconds, idle)
        text = f"Python does nothing that the profiler sees, such as a sleep, for {_of_step(side, gap)}"
        yield Cause(text, None, gap)
        return
    if not _matters(side, idle, _IDLE_SHARE):
        return
    if side.device == "cpu":
        gain = idle - _least(others, IDLE)
        if _matters(side, gain, _IDLE_SHARE):
            knob = "compile" if side.can_switch("compile") else None
            yield Cause(f"Python and the framework's dispatch take {_of_step(side, idle)}", knob, gain)
        return
    if side.host_seconds >= 0.8 * table.step_seconds and not side.host.waits:
        knobs = [knob for knob in (_CAPTURE, "compile") if side.can_switch(knob)]
        text = (
            f"Python limits the step: it starts the work in {_milliseconds(side.host_seconds)}, and the device is idle "
            f"for {_of_step(side, idle)}"
        )
        yield Cause(text, knobs[0] if knobs else None, idle)


def _slow_layers(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    if not others:
        return
    for layer, (seconds, least) in sorted(_compare_layers(side, others).items(), key=lambda item: -item[1][0]):
        gain = seconds - least
        busy_gain = side.table.busy_seconds - min(other.table.busy_seconds for other in others)
        if not least or seconds < _FACTOR * least or not _matters(side, gain, _LARGE_SHARE) or busy_gain < 0.5 * gain:
            continue
        names = {
            name: time
            for (owner, _), work in side.table.layers.items()
            if owner == layer
            for name, time in work.names.items()
        }
        longest = max(names, key=lambda name: names[name], default="")
        text = (
            f"layer {layer} takes {_of_step(side, seconds)}, elsewhere {_milliseconds(least)}, mostly in the kernel "
            f"{longest[:60]}"
        )
        yield Cause(text, None, gain)


def _compare_layers(side: Side, others: Sequence[Side]) -> dict[str, tuple[float, float]]:
    """Return the seconds of each layer, and the least that another contender spends in it."""
    theirs = [_by_layer(other) for other in others]
    own = _by_layer(side).items()
    return {layer: (seconds, min(each.get(layer, 0.0) for each in theirs)) for layer, seconds in own}


def _by_layer(side: Side) -> dict[str, float]:
    seconds: defaultdict[str, float] = defaultdict(float)
    for (layer, _), work in side.table.layers.items():
        if layer != OUTSIDE:
            seconds[layer] += work.seconds
    return dict(seconds)


def _slow_classes(side: Side, others: Sequence[Side]) -> Iterator[Cause]:
    """Yield the class with the largest excess, where no rule knows more."""
    if not others:
        return
    best = min(others, key=lambda other: other.table.step_seconds)
    gains = {
        name: work.seconds - best.table.classes[name].seconds
        for name, work in side.table.classes.items()
        if name not in (IDLE, work_classes.UNATTRIBUTED)
    }
    name = max(gains, key=lambda each: gains[each])
    own, theirs = side.table.classes[name].seconds, best.table.classes[name].seconds
    if _matters(side, gains[name], _LARGE_SHARE) and own >= _FACTOR * theirs:
        knob = "compile" if name in (POINTWISE, POOL) and side.can_switch("compile") else None
        meaning = work_classes.MEANINGS[name]
        text = f"{name} ({meaning}) takes {_of_step(side, own)}, in {best.name} {_milliseconds(theirs)}"
        yield Cause(text, knob, gains[name])


RULES: tuple[Rule, ...] = (
    _layout,
    _casts,
    _unfused,
    _tf32,
    _kernel_search,
    _optimizer,
    _synchronisation,
    _host,
)
