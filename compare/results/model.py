"""A result file as typed, frozen objects, a class for each object of `result.schema.json`.

Read a result with `compare.results.result_file.read(path)`, or an object that was checked before with
`from_json(value)`. Write one with `to_json(result)`. Each field has the name of its key, and the schema says which
values it may have. Times are seconds, sizes are bytes, rounds count from 1. Keys that no class names stay in `extra`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from compare.agreement.gates import Gate
from compare.base import early_stopping, typed_json
from compare.base.interface import TRAIN
from compare.base.statistics import Ratio
from compare.base.typed_json import Json, JsonObject
from compare.results.explanation import Explanation

Interval: TypeAlias = Ratio
"""An estimate with its two-sided interval."""

Samples: TypeAlias = Mapping[str, Sequence[Any]]
"""Samples of one GPU as a series for each figure; `seconds` since the run's start stand beside them."""


@dataclass(frozen=True, kw_only=True)
class PairSide(JsonObject):
    """One side of a user's pair."""

    framework: str
    source_sha256: str
    dropout: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairSpec(JsonObject):
    """How a user's own two models were matched. `map` leads from torch's names to flax's.

    `beside` are differences that the certificate does not see. `losses` are by output, with its name where there are
    several.
    """

    map: Mapping[str, str]
    weights_from: str
    allowed: tuple[str, ...]
    different_alone: Mapping[str, float | None]
    sides: Mapping[str, PairSide]
    beside: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spec(JsonObject):
    """The settings of a comparison. Only a user's own models have a `pair`."""

    workload: str
    contenders: tuple[str, ...]
    batch_size: int
    accumulate: int
    prune: float | None = None
    round_to: int = 8
    prune_by: str = "kernels"
    finetune_epochs: int | None = None
    devices: int
    rotation: int
    machines: int
    batch_norm: str
    precision: str
    device: str
    rounds: int
    rounds_requested: int
    seed: int
    epochs: int
    margin: float
    confidence: float
    image: tuple[int, ...]
    classes: int
    model: Mapping[str, Json]
    optimizer: Mapping[str, Json]
    label_smoothing: float
    parameter_count: int | None
    data_source: str
    data_folder: str | None
    images: int | None
    data_sha256: str
    train_images: int
    test_images: int
    weights_sha256: str | None
    agreement_requested: bool
    energy_requested: bool
    cold_compile_requested: bool
    search_anew_requested: bool
    deterministic: bool
    deadline_seconds: float | None
    design: str
    design_reason: str | None
    least_rounds: int = 2
    looks: Mapping[str, float] | None = None
    task: str = field(default=TRAIN, metadata=typed_json.ALWAYS)
    batch_sizes: tuple[int, ...] | None = field(default=None, metadata=typed_json.ALWAYS)
    pair: PairSpec | None = None
    unequal: tuple[str, ...] = ()
    void_limit: float | None = None
    fail_above: float | None = None

    @property
    def is_comparison(self) -> bool:
        """Whether rounds were to be timed. A certificate alone has none."""
        return self.rounds_requested > 0

    @property
    def is_cut_off(self) -> bool:
        """Whether the run was interrupted before all rounds were complete. A run that may stop early looks first."""
        if self.looks is not None:
            return self.rounds < min(map(int, self.looks))
        return self.rounds < self.rounds_requested

    def confidence_of(self, rounds: int) -> float:
        """Return the confidence of an interval over so many valid rounds.

        A run that may stop early spends a part of the error at each look (`compare.base.early_stopping`).
        """
        if self.looks is None:
            return self.confidence
        looks = {int(look): error for look, error in self.looks.items()}
        return early_stopping.compute_confidence(min(rounds, max(looks)), looks)


@dataclass(frozen=True, kw_only=True)
class StepTimes(JsonObject):
    """Seconds per training step.

    Attributes:
        estimate: geometric mean of the median blocks of the rounds that count, None if no round counts.
        median, mean, iqr: over all blocks of the rounds that count, or of all rounds if none counts.
        interval: of the estimate, None for fewer than two rounds.
        samples: [rounds][blocks].
        windows: [rounds][blocks] start and end, seconds since the run's start.
        steps_per_block: steps in each block.
    """

    estimate: float | None
    median: float
    mean: float
    iqr: float
    interval: Interval | None
    samples: tuple[tuple[float, ...], ...]
    windows: tuple[tuple[tuple[float, ...], ...], ...]
    steps_per_block: int


@dataclass(frozen=True, kw_only=True)
class Latency(JsonObject):
    """Seconds of requests of one batch size. A request is a forward pass that the caller waits for.

    Attributes:
        p50, p90, p99: geometric means over the rounds that count of a round's quantiles. None if no round counts.
        low, high: ends of the interval of p50.
        intervals: of p50, p90 and p99 over rounds, each None for fewer than two rounds.
        images_per_second: of requests that do not wait for one another.
        enqueue_seconds: median time until the call returned, before the wait.
        device_seconds: time that the device was busy in a request, None with a reason in `absent`.
        host_seconds: p50 without `device_seconds`, None with a reason in `absent`.
        joules_per_thousand_images: of whole boards, None with a reason in `absent`.
        cold_start_seconds: from the start of a process to its first result, with programs from the cache.
        program: where the programs of the timed processes came from.
        samples: [rounds][requests] in seconds.
        queued: [rounds][blocks] seconds per request of blocks in which requests did not wait for one another.
        enqueued: [rounds] median seconds until a call returned.
        windows: [rounds][blocks] start and end, seconds since the run's start.
        absent: figure name to the reason why it is None.
    """

    p50: float | None
    p90: float | None
    p99: float | None
    low: float | None
    high: float | None
    intervals: Mapping[str, Interval | None]
    images_per_second: float | None
    enqueue_seconds: float | None
    device_seconds: float | None
    host_seconds: float | None
    joules_per_thousand_images: float | None
    cold_start_seconds: float | None
    program: str | None
    samples: tuple[tuple[float, ...], ...]
    queued: tuple[tuple[float, ...], ...]
    enqueued: tuple[float, ...]
    windows: tuple[tuple[tuple[float, ...], ...], ...]
    absent: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Memory(JsonObject):
    """Bytes by the definitions of `compare.machine.memory`. `absent` says why a figure is missing."""

    live_peak_bytes: int | None
    pool_peak_bytes: int | None
    process_bytes: int | None
    static_bytes: int | None
    absent: Mapping[str, str]

    def figure(self, name: str) -> int | None:
        """Return the figure with that key."""
        return getattr(self, name)


@dataclass(frozen=True, kw_only=True)
class Energy(JsonObject):
    """Energy of whole boards over `steps` and `seconds`. `reason` says why a figure is missing."""

    joules_per_step: float | None
    idle_watts: float | None
    steps: int | None
    seconds: float | None
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Communication(JsonObject):
    """Seconds per step of communication that computation does not hide. `reason` says why they are missing."""

    exposed_seconds: float | None
    steps: int | None
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Training(JsonObject):
    """A whole training run: the mean loss of every epoch, None where it was not finite, and accuracies."""

    loss: tuple[float | None, ...]
    train_accuracy: float | None
    test_accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class FullTraining(JsonObject):
    """The training run of the full model before it was pruned, by one contender."""

    contender: str
    training: Training


@dataclass(frozen=True, kw_only=True)
class Kept(JsonObject):
    """Where something of an earlier run was kept: its key in the store, and the date when it was made."""

    key: str
    created: str


@dataclass(frozen=True, kw_only=True)
class Contender(JsonObject):
    """The figures of one contender. A figure is None if its phase was skipped or not reached.

    `revision` is the commit of the user's code, None if it ran the files as they were.
    """

    name: str
    backend: str
    tuning: str
    status: str
    reason: str | None
    unproven: str | None
    settings: Mapping[str, Json]
    variables: Mapping[str, str]
    versions: Mapping[str, Json]
    kernel_search: str | None
    compile_seconds: float | None
    cached_compile_seconds: float | None
    first_step_seconds: float | None
    warmup_seconds: float | None
    steady: bool | None
    unsteady_rounds: int
    step_seconds: StepTimes | None
    images_per_second: float | None
    memory: Memory | None
    energy: Energy | None
    communication: Communication | None
    training: Training | None
    latency: Mapping[str, Latency] | None = None
    compile_measured: str | None = None
    compile_reason: str | None = None
    program_kept: Kept | None = None
    revision: str | None = None

    @property
    def samples(self) -> tuple[tuple[float, ...], ...]:
        """Return [rounds][blocks] seconds per step, empty if nothing was timed."""
        return self.step_seconds.samples if self.step_seconds else ()

    def list_series(self) -> list["Series"]:
        """Return everything that was timed: blocks of training steps, or requests of each batch size."""
        steps = (
            [Series(None, self.step_seconds.steps_per_block, self.step_seconds.samples)] if self.step_seconds else []
        )
        return steps + [
            Series(int(size), 1, latency.samples) for size, latency in (self.latency or {}).items() if latency.samples
        ]


@dataclass(frozen=True)
class Series:
    """What was timed of one contender.

    Attributes:
        batch_size: images of a request, None for training.
        steps_per_block: steps in each block. A request is a block of its own.
        samples: [rounds][blocks] seconds per step.
    """

    batch_size: int | None
    steps_per_block: int
    samples: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Stopped(JsonObject):
    """When and why timing ended: `rounds` that count, and the `reason` in words."""

    rounds: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Comparison(JsonObject):
    """A contender against the baseline. `ratio` is contender over baseline. `outliers` lists rounds, which count."""

    baseline: str
    contender: str
    ratio: Interval | None
    verdict: str
    rounds: int
    margin: float
    detectable: float | None
    outliers: tuple[int, ...]
    reason: str | None
    stopped: Stopped | None = None
    batch_size: int | None = field(default=None, metadata=typed_json.ALWAYS)

    @property
    def claimed_ratio(self) -> Interval | None:
        """Return the ratio if it may be shown: an INVALID comparison has none."""
        return None if self.verdict == "INVALID" else self.ratio


@dataclass(frozen=True, kw_only=True)
class TensorEvidence(JsonObject):
    """Relative errors of one tensor (`compare.agreement.certificate.Figures`), None if infinite or not judged."""

    name: str
    e64: float | None
    e32: float | None
    scaling: float | None
    noise: float | None
    baseline_error: float | None
    contender_error: float | None


@dataclass(frozen=True, kw_only=True)
class Pair(JsonObject):
    """The certificate of one contender with the baseline. `kept` names the store's entry it was read from."""

    baseline: str
    contender: str
    status: str
    gates: tuple[Gate, ...]
    first_mismatch: str | None
    notes: tuple[str, ...]
    tensors: tuple[TensorEvidence, ...]
    repairs: tuple[str, ...] = ()
    kept: Kept | None = field(default=None, metadata=typed_json.ALWAYS)


@dataclass(frozen=True, kw_only=True)
class Trajectory(JsonObject):
    """Loss of every training step, and the largest distance so far of the contender's one-ulp twins."""

    loss: tuple[float | None, ...]
    envelope: tuple[float | None, ...]


PAIR, SELF = KINDS = ("pair", "self")
"""A certificate is between frameworks, or between tunings of one framework's model."""


@dataclass(frozen=True, kw_only=True)
class Agreement(JsonObject):
    """All certificates. `gates` are the worst over all pairs. The keys of the last three mappings are contenders.

    `kind` is one of `KINDS`.
    """

    status: str
    precision: str
    reason: str | None
    pairs: tuple[Pair, ...]
    gates: tuple[Gate, ...]
    first_mismatch: str | None
    accuracies: Mapping[str, tuple[float, ...]]
    twin_accuracies: Mapping[str, tuple[float, ...]]
    trajectory: Mapping[str, Trajectory]
    kind: str = field(default=PAIR, metadata=typed_json.ALWAYS)


@dataclass(frozen=True, kw_only=True)
class Voided(JsonObject):
    """A round that counts for no contender."""

    round: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Gpu(JsonObject):
    """Samples of a further GPU. `lists_processes` says whether NVML lists this run's processes on it."""

    lists_processes: bool
    samples: Samples


@dataclass(frozen=True, kw_only=True)
class Telemetry(JsonObject):
    """Samples of the first GPU and of `others`. `reason` says why there are no samples.

    Attributes:
        cost_cores: cores that sampling kept busy.
        foreign_cores, idle_cores: cores that other programs and waiting contenders kept busy, by round.
        left_out: samples between blocks that are not stored.
        busiest: the program that worked most in a round that other programs made void, by round, None if unknown.
        void_limit: cores that others may keep busy in a valid round, None on a GPU and in older results.
    """

    reason: str | None
    cost_cores: float | None
    lists_processes: bool
    samples: Samples
    others: tuple[Gpu, ...]
    foreign_cores: tuple[float | None, ...]
    idle_cores: tuple[float | None, ...]
    left_out: int = 0
    busiest: tuple[str | None, ...] = ()
    void_limit: float | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return every GPU, the first one first."""
        return (Gpu(lists_processes=self.lists_processes, samples=self.samples), *self.others)


@dataclass(frozen=True, kw_only=True)
class Environment(JsonObject):
    """The machine and its software, in `extra`: a result need not have any of it."""

    @property
    def samestep(self) -> str | None:
        """Return the version of samestep, None if it was not recorded."""
        version = self.find_fact("samestep")
        return version if isinstance(version, str) else None

    def find_fact(self, *keys: str | int) -> Json:
        """Return the fact at these keys, such as `"cpu", "model"`. Return None if it was not recorded."""
        fact = cast("Any", self.extra)
        try:
            for key in keys:
                fact = fact[key]
        except (KeyError, IndexError, TypeError):
            return None
        return fact

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the recorded environment variables, empty if none were recorded."""
        recorded = self.extra.get("variables")
        if not isinstance(recorded, Mapping):
            return {}
        return {name: value for name, value in recorded.items() if isinstance(value, str)}

    def device_name(self, device: str) -> str | None:
        """Return the name of the first GPU for `cuda` or of the CPU, None if it was not recorded."""
        keys = ("nvidia", "gpus", 0, "name") if device == "cuda" else ("cpu", "model")
        name = self.find_fact(*keys)
        return name if isinstance(name, str) else None


@dataclass(frozen=True, kw_only=True)
class Result(JsonObject):
    """One comparison, or one certificate. The first contender is the baseline."""

    schema_version: int
    id: str
    created: str
    command: tuple[str, ...]
    spec: Spec
    environment: Environment
    contenders: tuple[Contender, ...]
    comparisons: tuple[Comparison, ...]
    agreement: Agreement
    voided: tuple[Voided, ...]
    telemetry: Telemetry
    explanation: Explanation | None = None
    full_training: FullTraining | None = None

    @property
    def void_rounds(self) -> frozenset[int]:
        """Return the rounds that count for no contender."""
        return frozenset(voided.round for voided in self.voided)

    @property
    def confidence(self) -> float:
        """Return the confidence of the intervals over the rounds that count."""
        return self.spec.confidence_of(self.spec.rounds - len(self.voided))

    @property
    def device_name(self) -> str | None:
        """Return the name of the device that contenders trained on, None if it was not recorded."""
        return self.environment.device_name(self.spec.device)


def from_json(value: Mapping[str, Any]) -> Result:
    """Return a checked result object (`compare.results.result_file.validate`) as a `Result`."""
    return typed_json.read(Result, value)


def to_json(result: Result) -> dict[str, Any]:
    """Return the result object that a result file holds."""
    return typed_json.write(result)
