"""Compute a result's figures and verdicts again from its raw samples, and find every place that differs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from compare.base import typed_json
from compare.base.interface import TRAIN
from compare.base.precisions import PRECISIONS
from compare.base.typed_json import Json
from compare.execution import round_validity
from compare.execution.round_validity import Round
from compare.execution.telemetry import Telemetry
from compare.reproduce import rejudge_gates
from compare.results import verdicts
from compare.results.model import Latency, Pair, Result, StepTimes, Voided
from compare.settings.block_order import list_gpus_of_round

TOLERANCE = 1e-9
"""Two figures are equal within this relative tolerance. Another CPU or numpy may round a logarithm's last digit."""

WINDOW_ROUNDING = 1e-9  # relative, for a sample that fills its window
_SPREADS = ("iqr", "detectable")  # if blocks hardly differ, these consist of rounding alone
_NO_SPREAD = 1e-12


@dataclass(frozen=True)
class Mismatch:
    """A place in a result that its raw samples do not give again.

    Attributes:
        place: for example `comparisons[0].verdict`.
        stored: the stored value.
        recomputed: the value that the raw samples give.
        is_missing: whether the result lacks the place.
    """

    place: str
    stored: Json
    recomputed: Json
    is_missing: bool = False

    @property
    def is_worded(self) -> bool:
        """Whether both values are a reason in words, which another samestep may word differently."""
        texts = isinstance(self.stored, str) and isinstance(self.recomputed, str)
        return texts and self.place.endswith("reason")


def find_mismatches(result: Result) -> list[Mismatch]:
    """Return every place of a valid result that its raw samples do not give again.

    Raw samples are block times, telemetry, the figures of each tensor, settings, loss curves and accuracies.
    """
    with np.errstate(all="ignore"):  # a figure that overflows differs, which is reported
        raw = rejudge_gates.rejudge(replace(result, voided=_find_void_rounds(result)))
        again = cast("dict[str, Json]", typed_json.write(verdicts.complete_result(raw)))
    causes_first = {key: again[key] for key in ("voided", "agreement", *again)}
    return [*_find_contradictions(result), *_compare("", typed_json.write(result), causes_first)]


def _find_contradictions(result: Result) -> Iterator[Mismatch]:
    """Yield where the spec or a contender's name contradicts the measurements."""
    spec = result.spec
    compute_dtype, dtypes = PRECISIONS[spec.precision].compute_dtype, list[Json]()
    telemetry = result.telemetry
    counts = {
        "telemetry.foreign_cores": len(telemetry.foreign_cores),
        "telemetry.idle_cores": len(telemetry.idle_cores),
    }
    for index, contender in enumerate(result.contenders):
        place, step, settings = f"contenders[{index}]", contender.step_seconds, contender.settings
        if step and contender.status == "ok":
            counts[f"{place}.step_seconds.samples"] = len(step.samples)
        for size, latency in (contender.latency or {}).items():
            if contender.status == "ok":
                counts[f"{place}.latency[{size}].samples"] = len(latency.samples)
            yield from _check_request_windows(f"{place}.latency[{size}]", latency)
        text = contender.name.partition("#")[0].partition("@")[0]
        name = f"{contender.backend}:{contender.tuning}" if ":" in text else contender.backend
        if name != text:
            yield Mismatch(f"{place}.name", contender.name, name)
        layers = settings.get("layer_dtypes")
        dtypes += [settings.get("compute_dtype", compute_dtype)]
        dtypes += cast("Mapping[str, Json]", layers).values() if isinstance(layers, Mapping) else ()
        trained = settings.get("batch_size", spec.batch_size)
        if trained != spec.batch_size and spec.task == TRAIN:
            yield Mismatch("spec.batch_size", spec.batch_size, trained)
        if step:
            yield from _check_windows(place, step)
    if compute_dtype not in dtypes:
        yield Mismatch("spec.precision", spec.precision, ", ".join(sorted(set(map(str, dtypes)))))
    for index, pair in enumerate(result.agreement.pairs):
        place = f"agreement.pairs[{index}]"
        missing = rejudge_gates.find_missing(pair, spec.precision, _required_gates(result, pair), spec.batch_sizes)
        yield from (Mismatch(f"{place}.{name}", None, None, True) for name in missing)
    yield from (
        Mismatch(f"number of {place}", count, spec.rounds) for place, count in counts.items() if count != spec.rounds
    )


def _required_gates(result: Result, pair: Pair) -> list[str]:
    """Return the gates of a pair besides those of its tensors. There are none if one side failed."""
    finished = {contender.name for contender in result.contenders if contender.status == "ok"}
    if not {pair.baseline, pair.contender} <= finished:
        return []
    whole_training = ["trajectory", "accuracy"] if result.agreement.accuracies else []
    if result.agreement.trajectory and not whole_training:
        whole_training = ["trajectory"]  # outputs without classes have no accuracy
    timed = ["update"] if result.comparisons and result.spec.task == TRAIN else []
    return ["settings", *whole_training, *timed, *(["determinism"] if result.spec.deterministic else [])]


def _check_windows(place: str, step: StepTimes) -> Iterator[Mismatch]:
    """Yield the blocks without a window, and those with longer samples than their window."""
    for number, (samples, windows) in enumerate(zip(step.samples, step.windows, strict=False)):
        if len(samples) != len(windows):
            yield Mismatch(f"number of {place}.step_seconds.windows[{number}]", len(windows), len(samples))
        for block, (seconds, (start, end)) in enumerate(zip(samples, windows, strict=False)):
            length = seconds * step.steps_per_block
            if end - start < length * (1 - WINDOW_ROUNDING):
                yield Mismatch(f"length of {place}.step_seconds.windows[{number}][{block}]", end - start, length)


def _check_request_windows(place: str, latency: Latency) -> Iterator[Mismatch]:
    """Yield the rounds whose requests took longer than the windows of their blocks."""
    for number, (samples, windows) in enumerate(zip(latency.samples, latency.windows, strict=False)):
        length, room = math.fsum(samples), math.fsum(end - start for start, end in windows)
        if room < length * (1 - WINDOW_ROUNDING):
            yield Mismatch(f"length of {place}.windows[{number}]", room, length)


def _find_void_rounds(result: Result) -> tuple[Voided, ...]:
    """Return the rounds that telemetry and the load of other programs make void."""
    spec, telemetry = result.spec, result.telemetry
    steps: list[StepTimes | Latency] = [each.step_seconds for each in result.contenders if each.step_seconds]
    steps += [latency for each in result.contenders for latency in (each.latency or {}).values()]
    if not steps:
        return result.voided
    cores = zip(telemetry.foreign_cores, telemetry.idle_cores, strict=False)
    rounds = [
        Round([], foreign, idle, gpus=list_gpus_of_round(number, spec.devices, spec.rotation))
        for number, (foreign, idle) in enumerate(cores)
    ]
    for step in steps:
        for each, windows in zip(rounds, step.windows, strict=False):
            each.windows += [(start, end) for start, end in windows]
    samples = Telemetry.of_json(typed_json.write(telemetry))
    void = round_validity.find_void_rounds(rounds, samples, spec.device, telemetry.void_limit)
    return tuple(Voided(round=index + 1, reason=reason) for index, reason in sorted(void.items()))


def _compare(place: str, stored: Json, recomputed: Json) -> Iterator[Mismatch]:
    if isinstance(stored, dict) and isinstance(recomputed, dict):
        for key, value in recomputed.items():
            if key in stored:
                yield from _compare(f"{place}.{key}" if place else key, stored[key], value)
    elif isinstance(stored, list) and isinstance(recomputed, list):
        values, others = cast("Sequence[Json]", stored), cast("Sequence[Json]", recomputed)
        if len(values) != len(others):
            yield Mismatch(f"number of {place}", len(values), len(others))
        for index, (value, other) in enumerate(zip(values, others, strict=False)):
            yield from _compare(f"{place}[{index}]", value, other)
    elif not _is_same(stored, recomputed, _NO_SPREAD if place.endswith(_SPREADS) else 0.0):
        yield Mismatch(place, stored, recomputed)


def _is_same(stored: Json, recomputed: Json, absolute: float) -> bool:
    if _is_number(stored) and _is_number(recomputed):
        a, b = cast("float", stored), cast("float", recomputed)
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=absolute)
    return type(stored) is type(recomputed) and stored == recomputed


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
