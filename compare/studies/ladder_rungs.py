"""The rungs of a ladder, and what a measured rung is worth. Pure: a caller times the rungs.

A rung makes one change to the form below it. A change of knobs holds for a backend alone. A change of precision, batch
or model holds for all backends, because one comparison has one of each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compare.base import statistics
from compare.base.interface import INFER, TRAIN, Refused
from compare.base.knobs import KNOBS, PARALLEL_WORDS, Value, has_knobs
from compare.base.precisions import PRECISIONS
from compare.base.statistics import Ratio
from compare.base.typed_json import JsonObject
from compare.results import verdicts
from compare.results.model import Contender, Memory, Result
from compare.settings import tunings

KNOB, PRECISION, BATCH, MODEL = KINDS = ("knobs", "precision", "batch", "model")
"""The kinds of a change. Only a change of knobs can be timed in the same rounds as the rung before."""

EAGER, COMPILED, PRUNED = "eager", "compiled", "pruned"
TOO_FEW_ROUNDS = "too few rounds count, because other programs disturbed them"
STEPS = 8
"""Steps that one dispatch starts on that rung."""
BATCH_FACTOR = 2
"""How many times as many images a step has on the rung of the larger batch."""
PRUNED_SHARE = 0.5
"""The share of the channels that the last rung removes where the user gives none."""


@dataclass(frozen=True)
class Change:
    """The change of one rung.

    Attributes:
        name: the rung's name.
        words: the change in words.
        kind: one of `KINDS`.
        knobs: what is added to a tuning: the first of these that goes together with it.
        devices: the devices on which the rung is tried unless the user names it.
    """

    name: str
    words: str
    kind: str = KNOB
    knobs: Sequence[str] = ()
    devices: Sequence[str] = ("cpu", "cuda")


CHANGES: Mapping[str, Change] = {
    change.name: change
    for change in (
        Change(EAGER, "the form of the framework's own tutorial: torch runs op by op, JAX has a jitted step"),
        Change(COMPILED, "compile the step; in JAX, which compiles already, let it overwrite its input state"),
        Change("memory-layout", "keep images and kernels in NHWC memory order", knobs=("channels-last",)),
        Change("tf32", "products of float32 numbers in tf32", PRECISION),
        Change("bfloat16", "products in bfloat16, parameters in float32", PRECISION),
        Change("float16", "products in float16 with a loss scale, parameters in float32", PRECISION, devices=("cuda",)),
        Change("fused-optimizer", "update all parameters in one kernel", knobs=("fused-optimizer",)),
        Change("kept-heap", "keep freed memory in the process", knobs=("kept-heap",), devices=("cpu",)),
        Change(
            "graph-capture",
            "replay the step as a CUDA graph",
            knobs=("graph-capture", "fused-optimizer+graph-capture"),
        ),
        Change(
            "steps-per-dispatch",
            f"start {STEPS} steps with one call from Python",
            knobs=(
                f"steps-per-dispatch={STEPS}",
                f"graph-capture+steps-per-dispatch={STEPS}",
                f"fused-optimizer+graph-capture+steps-per-dispatch={STEPS}",
            ),
        ),
        Change("kernel-search", "time several kernels and keep the fastest", knobs=("kernel-search",)),
        Change("overlapped-input", "batches come from the host while others train", knobs=("input=stream",)),
        Change(
            "rematerialisation",
            "compute each block again in the backward pass: less memory",
            knobs=("rematerialisation",),
        ),
        Change("larger-batch", f"{BATCH_FACTOR} times as many images in a step", BATCH),
        Change(PRUNED, "remove a share of the channels", MODEL),
    )
}
"""Every rung, from the ground up."""


@dataclass(frozen=True, kw_only=True)
class RungContender(JsonObject):
    """One backend on one rung.

    Attributes:
        contender: as `samestep compare` takes it.
        step_seconds: seconds of a step with their interval.
        break_even_steps: steps after which the longer compilation has paid; None where it never does, or is not known.
        latency_seconds: p50, p90 and p99 of a request, by its batch size. Few requests have no p99.
        test_accuracy: after the workload's training.
        agreement: the status of its certificate, or None if there is none.
        kept: whether the next rung builds on it. None if the rung changes nothing for this backend.
        ratio: time of an image over that on the rung before.
        reason: why it is not kept, or why the rung changes nothing.
    """

    contender: str
    step_seconds: Ratio | None
    images_per_second: float | None
    memory: Memory | None
    compile_seconds: float | None
    break_even_steps: int | None
    latency_seconds: Mapping[str, Mapping[str, float]] | None
    test_accuracy: float | None
    agreement: str | None
    kept: bool | None
    ratio: Ratio | None
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Rung(JsonObject):
    """One rung. A rung that cannot be done here has no `contenders` and a `reason`.

    Attributes:
        is_same_rounds: whether it was timed in the same rounds as the rung before.
        operations: multiplications of an image before and after pruning, None on other rungs.
        parameters: their number before and after pruning, None on other rungs.
    """

    name: str
    change: str
    contenders: Mapping[str, RungContender]
    precision: str
    batch_size: int
    prune: float | None
    is_same_rounds: bool
    reason: str | None
    operations: tuple[int, int] | None = None
    parameters: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Ladder(JsonObject):
    """What `samestep ladder` measured."""

    rungs: tuple[Rung, ...]
    workload: str
    device: str
    device_name: str | None
    margin: float
    rounds: int
    command: tuple[str, ...]

    def find_ends(self, backend: str) -> list[tuple[str, Rung, RungContender]]:
        """Return the backend's first rung, its best one of the same model, and its pruned one if that is kept."""
        kept = [(rung, each) for rung in self.rungs if (each := rung.contenders.get(backend)) is not None and each.kept]
        if not kept:
            return []
        same = [pair for pair in kept if pair[0].name != PRUNED]
        ends = [("before", *same[0]), ("after", *same[-1])]
        return ends + [("after, pruned", *pair) for pair in kept if pair[0].name == PRUNED]


@dataclass(frozen=True)
class Times:
    """The times that a later rung is compared with.

    Attributes:
        image_seconds: seconds per image of every round that counts, by round from 0.
        confidence: of intervals over these rounds.
        compile_seconds: from an empty cache, None if not known.
    """

    image_seconds: Mapping[int, float]
    confidence: float
    compile_seconds: float | None

    @property
    def mean(self) -> float | None:
        """The geometric mean of seconds per image."""
        values = list(self.image_seconds.values())
        return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def find_times(result: Result, contender: Contender) -> Times:
    """Return the times of a contender of a result."""
    medians, spec = verdicts.find_medians(result, contender), result.spec
    images = {index: seconds / spec.batch_size for index, seconds in medians.items()}
    return Times(images, spec.confidence_of(len(images)), contender.compile_seconds)


def compare_times(before: Times, after: Times, *, is_same_rounds: bool) -> Ratio | None:
    """Return how many times as long an image takes as before, or None without two rounds that count."""
    first, second = before.image_seconds, after.image_seconds
    if is_same_rounds:
        rounds = [index for index in first if index in second]
        first, second = ({index: times[index] for index in rounds} for times in (first, second))
    if min(len(first), len(second)) < verdicts.LEAST_ROUNDS:
        return None
    estimate = statistics.estimate_paired_ratio if is_same_rounds else statistics.estimate_independent_ratio
    return estimate(list(first.values()), list(second.values()), after.confidence)


def count_break_even_steps(before: Times, after: Times, batch_size: int) -> int | None:
    """Return the steps after which a longer compilation has paid, 0 if it is no longer. None if never or not known."""
    if None in (before.compile_seconds, after.compile_seconds, before.mean, after.mean):
        return None
    assert before.compile_seconds is not None
    assert after.compile_seconds is not None
    extra = after.compile_seconds - before.compile_seconds
    gain = ((before.mean or 0.0) - (after.mean or 0.0)) * batch_size
    if extra <= 0 <= gain:
        return 0
    return math.ceil(extra / gain) if gain > 0 else None


def find_agreement(result: Result, contender: Contender) -> tuple[str | None, str | None]:
    """Return the status of a contender's certificate and its first mismatch. The baseline has those of all pairs."""
    pairs = [pair for pair in result.agreement.pairs if contender.name in (pair.baseline, pair.contender)]
    if not pairs:
        return None, result.agreement.reason
    failed = next((pair for pair in pairs if pair.status != "pass"), None)
    return ("pass", None) if failed is None else (failed.status, failed.first_mismatch)


def explain_failure(result: Result, contender: Contender) -> str | None:
    """Return why a contender can not be kept, however fast it is. None if it can."""
    if contender.status != "ok":
        return f"{contender.status}: {contender.reason or 'no reason was given'}"
    agreement, mismatch = find_agreement(result, contender)
    if agreement != "pass":
        return f"does not agree: {mismatch or agreement or 'no certificate'}"
    if contender.unproven:
        return f"not proved: {contender.unproven}"
    return None


def judge_gain(ratio: Ratio | None, margin: float) -> tuple[bool, str | None]:
    """Return whether a ratio to the rung before is a gain, and what must be said about it."""
    if ratio is None:
        return False, TOO_FEW_ROUNDS
    if ratio.estimate <= 1 / (1 + margin):
        return True, None if ratio.high < 1 else "the interval includes 1"
    if ratio.low > 1:
        return False, "slower"
    return False, f"no gain of {100 * margin:g} %"


def join_ratios(ratios: Sequence[Ratio | None]) -> Ratio | None:
    """Return the geometric mean of the ratios of all backends. None if one is missing."""
    whole = [ratio for ratio in ratios if ratio is not None]
    if not whole or len(whole) < len(ratios):
        return None

    def mean(values: Sequence[float]) -> float:
        return math.exp(sum(map(math.log, values)) / len(values))

    low, high = mean([ratio.low for ratio in whole]), mean([ratio.high for ratio in whole])
    return Ratio(mean([ratio.estimate for ratio in whole]), low, high, min(ratio.confidence for ratio in whole))


@dataclass(frozen=True)
class Ground:
    """Where a ladder stands: what decides whether a tuning can be honoured."""

    device: str
    workload: str
    task: str = TRAIN

    def resolve(self, backend: str, tuning: str, precision: str) -> dict[str, Value]:
        """Return the knobs of a tuning.

        Raises:
            Refused: the knobs do not go together here.
        """
        return tunings.resolve(backend, tuning, self.device, self.workload, precision, task=self.task)

    def apply(self, change: Change, backend: str, tuning: str, precision: str) -> list[str]:
        """Return the tunings that a rung of knobs can have on top of another one, the smallest change first.

        Raises:
            Refused: the backend or device has no such change.
        """
        if not has_knobs(backend):
            raise Refused(f"{backend} has no knobs")
        if change.name == COMPILED:
            options = [COMPILED, f"{tuning}+compile"]
        else:
            for name in change.knobs[0].split("+"):
                knob = KNOBS[name.partition("=")[0]]
                if not knob.is_switch(backend):
                    raise Refused(knob.describe(backend))
            added = [_leave_out(knobs, tuning) for knobs in change.knobs]
            options = [f"{tuning}+{knobs}" for knobs in dict.fromkeys(added) if knobs]
        before = self.resolve(backend, tuning, precision)
        found, refusal = list[str](), None
        for option in options:
            try:
                knobs = self.resolve(backend, option, precision)
            except Refused as error:
                refusal = refusal or error
                continue
            if knobs != before:
                found.append(option)
        if not found:
            raise refusal or Refused("already on")
        return found


def _leave_out(knobs: str, tuning: str) -> str:
    """Return knobs without those that a tuning has already."""
    names = {part.partition("=")[0] for part in tuning.split("+")}
    return "+".join(part for part in knobs.split("+") if part.partition("=")[0] not in names)


def make_request_tuning(tuning: str) -> str:
    """Return a tuning without the knobs that only a training step has."""
    parts = tuning.split("+")
    kept = [
        part
        for part in parts
        if part not in PARALLEL_WORDS and ((name := part.partition("=")[0]) not in KNOBS or INFER in KNOBS[name].tasks)
    ]
    return "+".join(kept) or tunings.STOCK


def choose_changes(names: Sequence[str], precision: str, device: str) -> list[tuple[Change, str]]:
    """Return the rungs to climb, each with the reason why it is skipped, or "".

    Args:
        names: the rungs that the user names, empty for all.
        precision: the one that the ladder starts in.
        device: `cpu` or `cuda`.

    Raises:
        Refused: for an unknown rung.
    """
    for name in names:
        if name not in CHANGES:
            raise Refused(f"--rungs {name} is not allowed; allowed: {', '.join(CHANGES)}")
    chosen = list[tuple[Change, str]]()
    for change in CHANGES.values():
        if names and change.name not in (*names, EAGER):
            continue
        reason = ""
        if change.kind == PRECISION:
            coarser = PRECISIONS[change.name].roundoff > PRECISIONS[precision].roundoff
            if not PRECISIONS[change.name].runs_on(device):
                reason = f"needs --device {PRECISIONS[change.name].required_device}"
            elif not coarser:
                reason = f"the ladder starts in {precision}"
        if not reason and device not in change.devices and not names:
            reason = f"rarely pays on {device}; --rungs {change.name} tries it"
        chosen.append((change, reason))
    return chosen
