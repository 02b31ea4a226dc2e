"""The parent's side: run a plan's phases in child processes, one contender's failure never taking another's results.

Phases: training (cold caches; gives compile time, accuracy, effective settings), certificate, memory, timed rounds.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare import knobs, recording
from compare.agreement import gates
from compare.child import Child
from compare.contenders import Contender
from compare.data import store
from compare.interface import Arrays, ContenderFailed
from compare.measure.order import palindromic
from compare.plan import Plan

BLOCK_SECONDS: Mapping[str, float] = {"cpu": 0.02, "cuda": 0.1}
_PALINDROMES = 3
_CERTIFIED_STEPS = 3
_MEMORY_STEPS = 3

Progress = Callable[[str, int, int], None]


@dataclass
class Outcome:
    """What became of one contender; fields stay None or empty where a phase was not reached."""

    contender: Contender
    status: str = "ok"
    reason: str | None = None
    opened: dict[str, Any] = field(default_factory=dict[str, Any])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    start: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    steps_per_block: int | None = None
    samples: list[list[float]] = field(default_factory=list[list[float]])
    unproven: str | None = None


@dataclass
class Outcomes:
    """What became of a whole plan: contenders in order, and the certificate of each with the baseline."""

    contenders: list[Outcome]
    certificates: dict[str, gates.Certificate] = field(default_factory=dict[str, gates.Certificate])

    @property
    def alive(self) -> list[Outcome]:
        """The contenders that have not failed."""
        return [outcome for outcome in self.contenders if outcome.status == "ok"]


def run(plan: Plan, progress: Progress) -> Outcomes:
    """Carry out a plan; `progress(phase, done, total)` is called between timed blocks, never during one."""
    outcomes = Outcomes([Outcome(contender) for contender in plan.contenders])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = _Launcher(plan, Path(scratch))
        store.save(plan.dataset, launcher.dataset)
        for index, outcome in enumerate(outcomes.contenders):
            progress(f"train {outcome.contender.name}", index, len(outcomes.contenders))
            _train(launcher, outcome)
        progress("certify", 0, 1)
        if plan.agreement:
            _certify(launcher, outcomes)
        for index, outcome in enumerate(outcomes.alive):
            progress(f"memory of {outcome.contender.name}", index, len(outcomes.contenders))
            _measure_memory(launcher, outcome)
        for number in range(plan.rounds):
            progress("timed rounds", number, plan.rounds)
            if len(outcomes.alive) > 0:
                _round(launcher, outcomes.alive)
        progress("timed rounds", plan.rounds, plan.rounds)
    return outcomes


@dataclass
class _Launcher:
    """Starts children of one plan with their environment and compilation caches."""

    plan: Plan
    scratch: Path

    @property
    def dataset(self) -> Path:
        """The dataset file that all children read."""
        return self.scratch / "dataset.safetensors"

    def spec(self, outcome: Outcome, **changes: Any) -> dict[str, Any]:
        """Return what a child of this contender is told to build, as JSON types."""
        return self.plan.spec(outcome.contender, self.dataset, **changes).to_json()

    @contextmanager
    def child(self, outcome: Outcome, *, purpose: str) -> Iterator[Child]:
        """Start a greeted child for the `with` block; a failure in it marks the outcome and ends the block."""
        child = None
        try:
            child = self.started(outcome, purpose=purpose)
            outcome.versions = child.greet(self.plan.deadlines["start"])["versions"]
            yield child
        except ContenderFailed as failure:
            outcome.status, outcome.reason = failure.status, f"{purpose}: {failure.reason}"
        finally:
            if child is not None:
                child.close()

    def started(self, outcome: Outcome, *, purpose: str) -> Child:
        """Start a child without waiting for it."""
        contender = outcome.contender
        values = knobs.resolve(contender.backend, contender.tuning, self.plan.device)
        added = knobs.child_environment(contender.backend, values, self.plan.device, os.environ)
        # The training run compiles into an empty cache (cold); the other phases find its programs there. Certificates
        # have other precisions and keep theirs from run to run.
        cache = _user_cache() if purpose == "certificate" else self.scratch / f"cache-{contender.name}"
        added |= knobs.cache_environment(contender.backend, cache)
        return Child(contender.name, contender.package, added, self.scratch)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samestep" / "programs"


def _train(launcher: _Launcher, outcome: Outcome) -> None:
    plan = launcher.plan
    with launcher.child(outcome, purpose="training") as child:
        spec = launcher.spec(outcome)
        outcome.opened = child.call("open", plan.deadlines["open"], spec=spec)
        seconds = BLOCK_SECONDS[plan.device]
        outcome.start = child.call("warm_up", plan.deadlines["warm_up"], block_seconds=seconds, steps=None)
        outcome.settings = child.call("settings", plan.deadlines["open"])
        outcome.training = child.call("train", plan.deadlines["train"])


def _certify(launcher: _Launcher, outcomes: Outcomes) -> None:
    records: dict[str, dict[str, Arrays]] = {}
    for outcome in outcomes.alive:
        with launcher.child(outcome, purpose="certificate") as child:
            outcome.memory = {
                "idle": child.call("idle_memory", launcher.plan.deadlines["memory"], device=launcher.plan.device)
            }
            records[outcome.contender.name] = {
                precision: _record(launcher, child, outcome, precision) for precision in ("float64", "float32")
            }
    baseline = outcomes.contenders[0]
    for outcome in outcomes.contenders[1:]:
        if baseline.status == "ok" and outcome.status == "ok":
            pair = records[baseline.contender.name], records[outcome.contender.name]
            outcomes.certificates[outcome.contender.name] = gates.certify(*pair)


def _record(launcher: _Launcher, child: Child, outcome: Outcome, precision: str) -> Arrays:
    path = launcher.scratch / f"record-{child.pid}-{precision}.safetensors"
    spec = launcher.spec(outcome, precision=precision)
    deadline = launcher.plan.deadlines["record"]
    names = child.call("record", deadline, spec=spec, steps=_CERTIFIED_STEPS, path=str(path))
    return recording.load(path, names)


def _measure_memory(launcher: _Launcher, outcome: Outcome) -> None:
    plan, idle = launcher.plan, None
    if outcome.memory is None:
        with launcher.child(outcome, purpose="memory") as child:
            idle = child.call("idle_memory", plan.deadlines["memory"], device=plan.device)
    else:
        idle = outcome.memory["idle"]
    outcome.memory = None
    with launcher.child(outcome, purpose="memory") as child:
        child.call("open", plan.deadlines["open"], spec=launcher.spec(outcome))
        measured = child.call("memory", plan.deadlines["memory"], steps=_MEMORY_STEPS)
        outcome.memory = _memory_figures(measured, idle, plan.device)


def _memory_figures(measured: dict[str, Any], idle: int | None, device: str) -> dict[str, Any]:
    figures: dict[str, Any] = dict(measured["framework"])
    absent = dict(figures["absent"])
    if measured["process"] is None:
        absent["process_bytes"] = "NVML does not list this process"
    else:
        # A process that has only imported its framework holds no device memory, and NVML does not list it.
        figures["process_bytes"] = measured["process"] - (idle or 0)
    return figures | {"absent": absent}


def _round(launcher: _Launcher, alive: list[Outcome]) -> None:
    """Time one round: fresh processes, all alive together, one working at a time, blocks in palindromic order."""
    plan, children = launcher.plan, dict[str, Child]()
    try:
        for outcome in alive:
            children[outcome.contender.name] = launcher.started(outcome, purpose="round")
        for outcome in alive:
            _attempt(outcome, lambda o: _open(launcher, children[o.contender.name], o))
        for outcome in alive:
            if outcome.status == "ok":
                _attempt(outcome, lambda o: children[o.contender.name].reply("open", plan.deadlines["open"]))
        for outcome in alive:
            if outcome.status == "ok":
                _attempt(outcome, lambda o: _warm_up(plan, children[o.contender.name], o))
        timed = [outcome for outcome in alive if outcome.status == "ok"]
        blocks: dict[str, list[float]] = {outcome.contender.name: [] for outcome in timed}
        for index in palindromic(len(timed), _PALINDROMES):
            if timed[index].status == "ok":
                _attempt(timed[index], lambda o: blocks[o.contender.name].append(_block(plan, children, o)))
        for outcome in timed:
            if outcome.status == "ok":
                outcome.samples.append(blocks[outcome.contender.name])
                _attempt(outcome, lambda o: _prove(plan, children[o.contender.name], o))
    finally:
        for child in children.values():
            child.close()


def _attempt(outcome: Outcome, action: Callable[[Outcome], object]) -> None:
    try:
        action(outcome)
    except ContenderFailed as failure:
        outcome.status, outcome.reason = failure.status, f"timed rounds: {failure.reason}"


def _open(launcher: _Launcher, child: Child, outcome: Outcome) -> None:
    child.greet(launcher.plan.deadlines["start"])
    child.send("open", spec=launcher.spec(outcome))


def _warm_up(plan: Plan, child: Child, outcome: Outcome) -> None:
    seconds, steps = BLOCK_SECONDS[plan.device], outcome.steps_per_block
    warm = child.call("warm_up", plan.deadlines["warm_up"], block_seconds=seconds, steps=steps)
    outcome.steps_per_block = warm["steps_per_block"]
    trained = outcome.start
    if trained is not None and warm["first_losses"] != trained["first_losses"]:
        outcome.unproven = outcome.unproven or _loss_difference(
            warm["first_losses"], trained["first_losses"], plan.precision
        )


def _block(plan: Plan, children: dict[str, Child], outcome: Outcome) -> float:
    steps = outcome.steps_per_block
    assert steps is not None  # set by _prepare
    return children[outcome.contender.name].call("block", plan.deadlines["block"], steps=steps) / steps


def _prove(plan: Plan, child: Child, outcome: Outcome) -> None:
    proof = child.call("proof", plan.deadlines["block"])
    if proof["exported"] != proof["dispatched"]:
        outcome.unproven = f"{proof['dispatched']} steps were dispatched but {proof['exported']} trained"
    elif proof["last_loss"] is None:
        outcome.unproven = "the loss was not finite at the end of a timed round"


# Largest relative difference between one program's own losses over the first steps of two launches: kernel autotuning
# and atomics change the order of summation, nothing else.
_REPEATED_LOSS: Mapping[str, float] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "tf32": 1e-2,
    "bfloat16": 5e-2,
    "float16": 1e-2,
}


def _loss_difference(timed: list[float | None], trained: list[float | None], precision: str) -> str | None:
    for step, (a, b) in enumerate(zip(timed, trained, strict=True), start=1):
        if a is None or b is None or abs(a - b) > _REPEATED_LOSS[precision] * max(abs(b), 1e-6):
            return f"the loss at step {step} of a timed round is {a}, in the training run it is {b}"
    return None
