"""The state of a run: what each contender has reported so far, and the plan that is run and judged."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compare.agreement.certificate import Certificate
from compare.agreement.measures import Updates
from compare.agreement.trajectory import Curves
from compare.base.commands import DeviceTime, ModelInfo, PruningCheck, TrainingResult, WarmUpTimes
from compare.base.communication import Communication
from compare.base.interface import ContenderFailed, Memory
from compare.base.profiles import Profile, ProfileReply
from compare.execution import round_validity
from compare.execution.energy import Energy
from compare.execution.round_validity import Round, Window
from compare.execution.telemetry import Telemetry
from compare.settings.contenders import Contender
from compare.settings.plan import Plan
from compare.user_models.match_report import Pairing


@dataclass
class RequestSeries:
    """What one contender has reported of its requests of one batch size.

    Attributes:
        first_losses: of its first answers, in the process that compiled.
        steps_per_block: requests that do not wait for one another, in a timed block.
        requests_per_block: requests that do, in a timed block.
        program: where the program of the latest process came from.
        samples: [rounds][requests] seconds.
        queued: [rounds][blocks] seconds per request that does not wait.
        enqueued: [rounds] seconds until a call returned.
        windows: [rounds][blocks].
        device_time: how long the device was busy in a request.
        energy: of a request.
    """

    first_losses: Sequence[float | None] = ()
    steps_per_block: int | None = None
    requests_per_block: int | None = None
    program: str | None = None
    samples: list[list[float]] = field(default_factory=list[list[float]])
    queued: list[list[float]] = field(default_factory=list[list[float]])
    enqueued: list[float] = field(default_factory=list[float])
    windows: list[list[Window]] = field(default_factory=list[list[Window]])
    device_time: DeviceTime | None = None
    energy: Energy | None = None

    def keep_rounds(self, count: int) -> None:
        """Drop all rounds but the first `count`."""
        for series in (self.samples, self.queued, self.enqueued, self.windows):
            del series[count:]


@dataclass
class ContenderRun:
    """What one contender has reported. A field stays None or empty if its phase was not reached."""

    contender: Contender
    status: str = "ok"
    reason: str | None = None
    model: ModelInfo | None = None
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    warm_up: WarmUpTimes | None = None
    has_compiled_alone: bool = True
    cold: "ColdCompile | None" = None
    cold_reason: str | None = None
    program_kept: "KeptProgram | None" = None
    held_bytes: int = 0
    training: TrainingResult | None = None
    update: Updates | None = None
    pruning: PruningCheck | None = None
    memory: Memory | None = None
    energy: Energy | None = None
    communication: Communication | None = None
    steps_per_block: int | None = None
    samples: list[list[float]] = field(default_factory=list[list[float]])
    windows: list[list[Window]] = field(default_factory=list[list[Window]])
    unsteady: list[bool] = field(default_factory=list[bool])
    cached_compile_seconds: list[float] = field(default_factory=list[float])
    unproven: str | None = None
    requests: dict[int, RequestSeries] = field(default_factory=lambda: defaultdict[int, RequestSeries](RequestSeries))
    cold_start_seconds: float | None = None

    @property
    def parameter_count(self) -> int:
        """The number of the model's parameters, or 0 while it is unknown."""
        return 0 if self.model is None else self.model.parameter_count

    @property
    def process_bytes(self) -> int | None:
        """The memory of its process: that of a measured step, or that after warm-up. None if it is unknown."""
        return (self.held_bytes or None) if self.memory is None else self.memory.process_bytes

    def fail(self, failure: ContenderFailed, purpose: str) -> None:
        """Mark the contender as failed. The reason starts with `purpose`."""
        self.status, self.reason = failure.status, f"{purpose}: {failure.reason}"

    def attempt(self, purpose: str, action: Callable[[], object]) -> None:
        """Do something for the contender, and mark it if that fails."""
        try:
            action()
        except ContenderFailed as failure:
            self.fail(failure, purpose)


@dataclass(frozen=True)
class ColdCompile:
    """The times of a start from an empty cache, alone. `measured` is the date of an earlier run, None for this one."""

    compile_seconds: float
    first_step_seconds: float
    warmup_seconds: float
    steady: bool
    measured: str | None = None


@dataclass(frozen=True)
class KeptProgram:
    """The compiled programs of an earlier run: the key of their entry in the store, and when they were compiled."""

    key: str
    created: str


@dataclass(frozen=True)
class KeptCertificate:
    """A certificate of an earlier run.

    Attributes:
        certificate: all its gates but `settings`, which every run judges anew.
        reports: what both sides reported when it was made (`compare.execution.kept_certificates`).
        key: the key of its entry in the store.
        created: when it was made, ISO 8601 in UTC.
    """

    certificate: Certificate
    reports: Any
    key: str
    created: str


@dataclass
class StepProfiles:
    """The profiles of one contender's step.

    Attributes:
        uncaptured: the profile of a step whose kernels start one by one.
        captured: the profile of the step as it is timed, if it is captured.
        reply: the figures of the session that is like the timed one.
        reason: why something is missing, or None.
    """

    uncaptured: Profile | None = None
    captured: Profile | None = None
    reply: ProfileReply | None = None
    reason: str | None = None


@dataclass(frozen=True)
class FullTraining:
    """The training run of the full model.

    Attributes:
        contender: the contender that trained it.
        result: its losses and accuracies.
    """

    contender: str
    result: TrainingResult


@dataclass
class RunState:
    """The state of a whole run.

    Attributes:
        plan: the plan that is run and judged.
        runs: the state of each contender, in the plan's order.
        certificates: the certificate of each other contender with the baseline, by name.
        kept: the certificates of earlier runs that this run uses, by name.
        pairing: the match of a user's own pair.
        design: how the rounds were timed.
        design_reason: why that is not the planned design, or None.
        rounds: the complete rounds.
        voided: the reason of every void round, by its index.
        full_training: the training run of the full model before it was pruned, None without one.
        profiles: what is known about the step of each contender, by name.
    """

    plan: Plan
    runs: list[ContenderRun]
    certificates: dict[str, Certificate] = field(default_factory=dict[str, Certificate])
    kept: dict[str, KeptCertificate] = field(default_factory=dict[str, KeptCertificate])
    curves: dict[str, Curves] = field(default_factory=dict[str, Curves])
    pairing: Pairing | None = None
    accuracies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    twin_accuracies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    design: str = "alternating"
    design_reason: str | None = None
    rounds: list[Round] = field(default_factory=list[Round])
    telemetry: Telemetry = field(default_factory=Telemetry)
    voided: Mapping[int, str] = field(default_factory=dict[int, str])
    full_training: FullTraining | None = None
    profiles: dict[str, StepProfiles] = field(default_factory=dict[str, StepProfiles])

    @classmethod
    def begin(cls, plan: Plan, pairing: Pairing | None = None) -> "RunState":
        """Return the state before anything has run."""
        return cls(plan, [ContenderRun(contender) for contender in plan.contenders], pairing=pairing)

    def find_void_rounds(self) -> Mapping[int, str]:
        """Return the reason of every void round so far, by its index."""
        limit = round_validity.find_limit(self.plan)
        return round_validity.find_void_rounds(self.rounds, self.telemetry, self.plan.device, limit)

    @property
    def baseline(self) -> ContenderRun:
        """The contender that all others are compared with."""
        return self.runs[0]

    @property
    def others(self) -> list[ContenderRun]:
        """The contenders that are compared with the baseline."""
        return self.runs[1:]

    @property
    def uncertified(self) -> list[ContenderRun]:
        """The other contenders that need a new certificate."""
        return [run for run in self.others if run.contender.name not in self.kept]

    @property
    def certified(self) -> list[ContenderRun]:
        """The contenders that take part in new certificates: the baseline is one of them if there are any."""
        return [self.baseline, *self.uncertified] if self.uncertified else []

    @property
    def alive(self) -> list[ContenderRun]:
        """The contenders that have not failed."""
        return [run for run in self.runs if run.status == "ok"]
