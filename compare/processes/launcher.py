"""Starting a plan's children: their environment, caches and input files, and what becomes of each contender."""

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from compare import environment
from compare.agreement.certificate import Certificate
from compare.agreement.trajectory import Curves
from compare.interface import ContenderFailed
from compare.measure.telemetry import Family, Telemetry
from compare.measure.voiding import Round, Window
from compare.pairing.found import Pairing
from compare.plan import Plan
from compare.processes.child import Child
from compare.tuning import knobs, tunings, variables
from compare.tuning.contenders import Contender

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how many parts of it are done, and out of how many; never while a block is timed."""


@dataclass
class Outcome:
    """What became of one contender; fields stay None or empty where a phase was not reached."""

    contender: Contender
    status: str = "ok"
    reason: str | None = None
    opened: dict[str, Any] = field(default_factory=dict[str, Any])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    start: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    update: Path | None = None
    idle_bytes: int | None = None
    memory: dict[str, Any] | None = None
    energy: dict[str, Any] | None = None
    communication: dict[str, Any] | None = None
    steps_per_block: int | None = None
    samples: list[list[float]] = field(default_factory=list[list[float]])
    windows: list[list[Window]] = field(default_factory=list[list[Window]])
    unsteady_rounds: int = 0
    cached_compile_seconds: list[float] = field(default_factory=list[float])
    unproven: str | None = None


@dataclass
class Outcomes:
    """What became of a whole plan: contenders in order, the certificate of each with the baseline, and the rounds.

    `pairing` is what was found of a user's own pair. `design` is how the rounds were really timed, with the reason
    where it is not what was planned. `interruption` is what ended them early; `rounds` are then those that were whole.
    """

    contenders: list[Outcome]
    certificates: dict[str, Certificate] = field(default_factory=dict[str, Certificate])
    curves: dict[str, Curves] = field(default_factory=dict[str, Curves])
    pairing: Pairing | None = None
    accuracies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    twin_accuracies: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    design: str = "alternating"
    design_reason: str | None = None
    rounds: list[Round] = field(default_factory=list[Round])
    interruption: BaseException | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    voided: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def alive(self) -> list[Outcome]:
        """The contenders that have not failed."""
        return [outcome for outcome in self.contenders if outcome.status == "ok"]


@dataclass
class Launcher:
    """Starts children of one plan with their environment and compilation caches.

    `memory_fraction` is the part of the GPU's memory that a child may take, where only its environment can say so.
    """

    plan: Plan
    scratch: Path
    memory_fraction: float | None = None
    family: Family = field(default_factory=Family)
    origin: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Return the seconds since the run's start."""
        return time.monotonic() - self.origin

    @property
    def dataset(self) -> Path:
        """The dataset file that all children read."""
        return self.scratch / "dataset.safetensors"

    def seeded(self, seed: int) -> Path:
        """The dataset file of another seed."""
        return self.scratch / f"dataset-seed-{seed}.safetensors"

    def spec(self, outcome: Outcome, **changes: Any) -> dict[str, Any]:
        """Return what a child of this contender is told to build, as JSON types."""
        return self.plan.spec(outcome.contender, self.dataset, **changes).to_json()

    def devices_here(self, outcome: Outcome) -> int:
        """Return how many devices of this machine a contender trains on."""
        return self.plan.devices_here(self._values(outcome))

    @contextmanager
    def child(self, outcome: Outcome, *, purpose: str) -> Generator[Child]:
        """Start a greeted child for the `with` block; a failure in it marks the outcome and ends the block."""
        child = None
        try:
            try:
                child = self.started(outcome, purpose=purpose)
                outcome.versions = child.greet(self.plan.deadlines["start"])["versions"]
                ready = child
            except ContenderFailed as failure:
                ready = cast(Child, _NeverStarted(failure))  # a context manager cannot leave its block out
            yield ready
        except ContenderFailed as failure:
            outcome.status, outcome.reason = failure.status, f"{purpose}: {failure.reason}"
        finally:
            if child is not None:
                child.close()

    def started(self, outcome: Outcome, *, purpose: str, beside: int = 0) -> Child:
        """Start a child without waiting for it; it shares the cores with those `beside` it that work when it does."""
        contender = outcome.contender
        values = self._values(outcome)
        share = self.plan.fleet.share() if values["parallel"] != knobs.NOT_PARALLEL else None
        here = self.plan.devices_here(values)
        added = variables.child_environment(
            contender.backend,
            values,
            self.plan.device,
            self.plan.deterministic,
            os.environ,
            self.memory_fraction,
            devices=here,
            machines=1 if share is None else self.plan.fleet.count,
        )
        outcome.variables = dict(added)  # what follows are folders, and the parts of cores that are shared
        # The training run compiles into an empty cache (cold); the other phases find its programs there. Certificates
        # report no compile time, and keep their programs from run to run.
        kept = purpose in ("matching", "certificate")
        named = f"cache-{contender.name}"
        if purpose == "matching":
            added |= variables.matching_environment(contender.backend)
        if beside:
            added |= variables.thread_environment(max(1, environment.cores() // (beside + 1)), os.environ)
        cache = variables.user_cache() if kept else self.scratch / named
        own = added | variables.cache_environment(contender.backend, cache)
        try:
            if share is not None:
                processes = knobs.processes(values["parallel"], here)
                share.start(contender.backend, contender.package, added, None if kept else named, processes)
                own |= share.environment
            child = Child(contender.name, contender.package, own, self.scratch, share)
        except ContenderFailed:
            if share is not None:
                share.end()
            raise
        self.family.add(child.pid)
        return child

    def _values(self, outcome: Outcome) -> dict[str, knobs.Value]:
        contender, plan = outcome.contender, self.plan
        return tunings.resolve(contender.backend, contender.tuning, plan.device, plan.workload.name)


def attempt(outcome: Outcome, purpose: str, action: Callable[[], object]) -> None:
    """Do something for a contender; a failure marks its outcome."""
    try:
        action()
    except ContenderFailed as failure:
        outcome.status, outcome.reason = failure.status, f"{purpose}: {failure.reason}"


class _NeverStarted:
    """Stands for a child that did not come up: whatever is asked of it raises why."""

    def __init__(self, failure: ContenderFailed) -> None:
        self._failure = failure

    def __getattr__(self, name: str) -> NoReturn:
        raise self._failure
