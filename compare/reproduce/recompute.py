"""A result's figures and verdicts, computed again from its raw samples, and every place that says something else."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from compare.base import statistics
from compare.base.precisions import PRECISIONS
from compare.execution import round_validity
from compare.execution.round_validity import Round
from compare.execution.telemetry import Telemetry
from compare.reproduce import rejudge_gates
from compare.results import model, verdicts
from compare.settings.block_order import find_stored_gpus

Object = Mapping[str, Any]

TOLERANCE = 1e-9
"""Two figures are the same to within this, relatively: another CPU or numpy may round a logarithm's last digit."""

_ROUNDED = 1e-9  # of a sample, that it took within its window
_SPREADS = ("iqr", "detectable")  # where blocks hardly differ, these are nothing but such digits
_NO_SPREAD = 1e-12


@dataclass(frozen=True)
class Mismatch:
    """A place in a result, for example `comparisons[0].verdict`, what stands there, and what the raw samples give.

    Or what is `missing` there.
    """

    place: str
    stored: Any
    recomputed: Any
    missing: bool = False

    @property
    def worded(self) -> bool:
        """Whether both are a reason in words, which another samestep may have worded otherwise."""
        texts = isinstance(self.stored, str) and isinstance(self.recomputed, str)
        return texts and self.place.endswith("reason")


def mismatches(result: Object) -> list[Mismatch]:
    """Return every place of a valid result that its raw samples do not give again; none where all is as it says.

    Raw are the block times, the telemetry, the figures of each tensor, settings, loss curves and accuracies. What an
    older samestep did not store is not missed.
    """
    with np.errstate(all="ignore"):  # figures that overflow are figures that differ
        raw = rejudge_gates.recertified({**result, "voided": _voided(result), "contenders": _contenders(result)})
        again = model.to_json(verdicts.complete(model.from_json(raw)))
        pairs = zip(result["contenders"], again["contenders"], strict=True)
        again["contenders"] = [_earlier_rate(result, stored, _earlier_spread(stored, each)) for stored, each in pairs]
        causes_first = {key: again[key] for key in ("voided", "agreement", *again)}
        return [*_contradictions(result), *_differing("", result, causes_first)]


def _contradictions(result: Object) -> Iterator[Mismatch]:
    """Yield what the spec or a contender's name says otherwise than what was measured."""
    rounds, size, precision = (result["spec"][name] for name in ("rounds", "batch_size", "precision"))
    computed, dtypes = PRECISIONS[precision].compute_dtype, list[Any]()
    seen = result.get("telemetry", {})
    counted = [(f"telemetry.{name}", len(seen[name])) for name in ("foreign_cores", "idle_cores") if name in seen]
    for index, contender in enumerate(result["contenders"]):
        place, step = f"contenders[{index}]", contender["step_seconds"]
        if step and contender["status"] == "ok":
            counted.append((f"{place}.step_seconds.samples", len(step["samples"])))
        written = contender["name"].partition("#")[0]
        called = f"{contender['backend']}:{contender['tuning']}" if ":" in written else contender["backend"]
        if written != called:
            yield Mismatch(f"{place}.name", contender["name"], called)
        settings: Object = contender["settings"] or {}
        layers = settings.get("layer_dtypes")
        dtypes += [settings.get("compute_dtype", computed), *(layers.values() if isinstance(layers, dict) else ())]
        trained = settings.get("batch_size", size)
        if trained != size:
            yield Mismatch("spec.batch_size", size, trained)
        yield from _untimely(place, step)
    if computed not in dtypes:
        yield Mismatch("spec.precision", precision, ", ".join(sorted(set(map(str, dtypes)))))
    for index, pair in enumerate(result["agreement"]["pairs"]):
        place = f"agreement.pairs[{index}]"
        lacking = rejudge_gates.missing(pair, precision, _judged(result, pair))
        yield from (Mismatch(f"{place}.{what}", None, None, True) for what in lacking)
    yield from (Mismatch(f"number of {place}", count, rounds) for place, count in counted if count != rounds)


def _judged(result: Object, pair: Object) -> list[str]:
    """Return the gates that a pair is judged by, but for those of its tensors, if both sides came to the end.

    Earlier samesteps had not all of them, and did not record what idle contenders did.
    """
    agreement, ended = result["agreement"], {each["name"] for each in result["contenders"] if each["status"] == "ok"}
    recorded = any(cores is not None for cores in result["telemetry"]["idle_cores"])
    if not recorded or not {pair["baseline"], pair["contender"]} <= ended:
        return []
    whole = ["trajectory", "accuracy"] if agreement.get("accuracies") else []
    timed = ["update"] if result["comparisons"] else []
    return ["settings", *whole, *timed, *(["determinism"] if result["spec"].get("deterministic") else [])]


def _untimely(place: str, step: Object | None) -> Iterator[Mismatch]:
    """Yield the blocks that took longer by their samples than the windows in which they ran, or had no window."""
    if not step or "windows" not in step:
        return
    for number, (samples, windows) in enumerate(zip(step["samples"], step["windows"], strict=False)):
        if len(samples) != len(windows):
            yield Mismatch(f"number of {place}.step_seconds.windows[{number}]", len(windows), len(samples))
        for block, (seconds, (start, end)) in enumerate(zip(samples, windows, strict=False)):
            whole = seconds * step["steps_per_block"]
            if end - start < whole * (1 - _ROUNDED):
                yield Mismatch(f"length of {place}.step_seconds.windows[{number}][{block}]", end - start, whole)


def _voided(result: Object) -> list[dict[str, Any]]:
    """Return the rounds that telemetry and foreign load make void, as stored where that was not recorded."""
    seen, steps = result.get("telemetry"), [each["step_seconds"] for each in result["contenders"]]
    timed = [step for step in steps if step]
    on_gpu = result["spec"]["device"] == "cuda"  # else only what kept cores busy decides
    if not seen or not timed or (on_gpu and not all("windows" in step for step in timed)):
        return result["voided"]
    foreign = seen["foreign_cores"]
    rounds = [
        Round([], *cores, gpus=find_stored_gpus(result["spec"], number))
        for number, cores in enumerate(zip(foreign, seen.get("idle_cores", [None] * len(foreign)), strict=False))
    ]
    for step in timed:
        for each, windows in zip(rounds, step.get("windows", ()), strict=False):
            each.windows += [(start, end) for start, end in windows]
    found = round_validity.find_void_rounds(rounds, Telemetry.of_json(seen), result["spec"]["device"])
    return [{"round": index + 1, "reason": reason} for index, reason in sorted(found.items())]


def _contenders(result: Object) -> list[dict[str, Any]]:
    """Return the contenders; of an older result, what was not proved stands in the reason of a comparison only."""
    found: list[dict[str, Any]] = []
    for contender in result["contenders"]:
        phrase = f"{contender['name']} {verdicts.UNPROVEN}: "
        reasons = [each["reason"] or "" for each in result["comparisons"]]
        told = next((reason.removeprefix(phrase) for reason in reasons if reason.startswith(phrase)), None)
        found.append({"unproven": told, **contender})
    return found


def _earlier_spread(stored: Object, again: dict[str, Any]) -> dict[str, Any]:
    """Return a contender with spreads over all rounds, void ones too, where an older samestep stored them so."""
    if not again["step_seconds"]:
        return again
    whole, there = statistics.summarise(again["step_seconds"]["samples"]), stored["step_seconds"]
    if not all(_same(there[name], value, _NO_SPREAD) for name, value in whole.items()):
        return again
    return again | {"step_seconds": again["step_seconds"] | whole}


def _earlier_rate(result: Object, stored: Object, again: dict[str, Any]) -> dict[str, Any]:
    """Return a contender with images/s as samestep first took it, by the median of all blocks, where that is stored."""
    if not again["step_seconds"] or stored["images_per_second"] is None or "estimate" in stored["step_seconds"]:
        return again
    rate = result["spec"]["batch_size"] / again["step_seconds"]["median"]
    return again | {"images_per_second": rate} if _same(stored["images_per_second"], rate) else again


def _differing(place: str, stored: Any, recomputed: Any) -> Iterator[Mismatch]:
    if isinstance(stored, dict) and isinstance(recomputed, dict):
        known = cast("dict[str, Any]", stored)
        for key, value in cast("dict[str, Any]", recomputed).items():
            if key in known:
                yield from _differing(f"{place}.{key}" if place else key, known[key], value)
    elif isinstance(stored, list) and isinstance(recomputed, list):
        values, others = cast("Sequence[Any]", stored), cast("Sequence[Any]", recomputed)
        if len(values) != len(others):
            yield Mismatch(f"number of {place}", len(values), len(others))
        for index, (value, other) in enumerate(zip(values, others, strict=False)):
            yield from _differing(f"{place}[{index}]", value, other)
    elif not _same(stored, recomputed, _NO_SPREAD if place.endswith(_SPREADS) else 0.0):
        yield Mismatch(place, stored, recomputed)


def _same(stored: Any, recomputed: Any, absolute: float = 0.0) -> bool:
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (stored, recomputed))
    if numbers:
        return math.isclose(stored, recomputed, rel_tol=TOLERANCE, abs_tol=absolute)
    return type(stored) is type(recomputed) and stored == recomputed
