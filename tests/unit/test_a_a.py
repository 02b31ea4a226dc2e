"""100 runs of the fake backend against a slower one, through the real worker, rounds and judgement, in this process.

Its steps take their time and are counted. No figure of these runs depends on their losses.
"""

import contextlib
import functools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare.base import commands
from compare.base.commands import Command, Greeting
from compare.base.interface import Array, Arrays
from compare.base.interruptions import HeldSignals
from compare.data import dataset_file
from compare.execution import build_result, rounds
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import cpu
from compare.results import model, result_file
from compare.worker import process_memory
from compare.worker.worker import Worker
from tests.fakebackend import plans
from tests.fakebackend.script import Silent
from tests.fakebackend.session import FakeBackend, FakeSession

TRIALS, ROUNDS, LEAST_COVERED = 100, 10, 90
LAUNCH_NOISE, STEP_NOISE = 0.005, 0.01
BLOCKS = 24  # of a round of two contenders, half of them to lead in


class Machine:
    """Numbers the processes of all runs, and slows down by `drift` from the first block of a run to the last."""

    def __init__(self, drift: float) -> None:
        self.drift, self.blocks, self.processes = drift, 0, 0

    @property
    def slowness(self) -> float:
        return 1 + self.drift * self.blocks / (ROUNDS * BLOCKS)


class Quiet(Silent):
    """A script on a machine, without log or files."""

    def __init__(self, name: str, variable: str, machine: Machine) -> None:
        self._machine = machine
        super().__init__(name, variable)

    def advance(self, steps: float) -> None:
        super().advance(steps * self._machine.slowness)

    def _claim_number(self) -> int:
        self._machine.processes += 1
        return self._machine.processes


class InProcess:
    """Stands for `compare.execution.child.Child`, with the worker in this process."""

    pid = 0

    def __init__(self, script: Silent, machine: Machine) -> None:
        self._worker, self._machine = Worker(FakeBackend(script), script.clock), machine

    def greet(self) -> Greeting:
        return Greeting(1, "fake", {})

    def send(self, command: Command[Any]) -> None:
        self._machine.blocks += command.name == "block"
        self._answer = getattr(self._worker, command.name)(**commands.list_arguments(command))

    def reply(self, command: Command[Any]) -> Any:
        return self._answer

    def call(self, command: Command[Any]) -> Any:
        self.send(command)
        return self._answer

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


class Trials:
    """Runs of `fake` against a slower `other`."""

    def __init__(self, folder: Path, slowdown: float, drift: float) -> None:
        noise = {"launch_noise": LAUNCH_NOISE, "step_noise": STEP_NOISE}
        slow = {"step_seconds": 0.02 * (1 + slowdown), "seed": 2, **noise}
        script = {"folder": str(folder), "fake": {"step_seconds": 0.02, "seed": 1, **noise}, "other": slow}
        self._variable, self._machine = json.dumps(script), Machine(drift)
        self._plan = plans.make(folder / "out", ("fake", "other"), rounds=ROUNDS, agreement=False)
        self._launcher = Launcher(self._plan, folder)
        dataset_file.save(self._plan.dataset, self._launcher.dataset)
        self._launcher.start = self._started  # pyright: ignore[reportAttributeAccessIssue] -- no process is started

    def _started(self, outcome: ContenderRun, **_: Any) -> Any:
        return InProcess(Quiet(outcome.contender.name, self._variable, self._machine), self._machine)

    def ratio(self) -> dict[str, float]:
        """Return the ratio of one whole run."""
        self._machine.blocks = 0
        outcomes = RunState(self._plan, [ContenderRun(contender) for contender in self._plan.contenders])
        rounds.time_rounds(self._launcher, outcomes, lambda *step: None, HeldSignals())
        result = build_result.build(outcomes, ["samestep"])
        result_file.validate(model.to_json(result))
        ratio = result.comparisons[0].ratio
        assert ratio
        return asdict(ratio)


def _count(session: FakeSession, _: Any) -> tuple[Array, Array, Arrays]:
    session._step += 1
    return np.zeros(()), np.zeros(()), {}


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> functools.partial[list[dict[str, float]]]:
    plans.register(monkeypatch, tmp_path)
    monkeypatch.setattr(FakeSession, "_prepare", lambda session, batch: batch)
    monkeypatch.setattr(FakeSession, "_train", _count)
    monkeypatch.setattr(dataset_file, "load", functools.cache(dataset_file.load))
    monkeypatch.setattr(cpu, "read", lambda children: cpu.Reading(0, 0, 0))
    monkeypatch.setattr(cpu, "sum_seconds", lambda pids: 0.0)  # all contenders are this process
    monkeypatch.setattr(cpu, "read_programs", dict)  # it reads all of /proc, 4,000 times
    monkeypatch.setattr(build_result.environment, "describe", dict)
    # To give memory back 4,000 times takes minutes in a process that has run other tests.
    monkeypatch.setattr(process_memory, "reuse_memory", contextlib.nullcontext)

    def run(slowdown: float, drift: float) -> list[dict[str, float]]:
        made = Trials(tmp_path, slowdown, drift)
        return [made.ratio() for _ in range(TRIALS)]

    return functools.partial(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slowdown", "drift"),
    [(0.01, 1.0), *(pytest.param(0.0, drift, marks=pytest.mark.thorough) for drift in (0.0, 0.05))],
)
def test_the_true_ratio_lies_in_most_intervals_and_not_in_all(trials: Any, slowdown: float, drift: float):
    covered = sum(each["low"] <= 1 + slowdown <= each["high"] for each in trials(slowdown, drift))
    assert LEAST_COVERED <= covered < TRIALS
