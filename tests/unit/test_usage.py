"""Measurements of a contender on a GPU while nothing else works. On a CPU, whole runs show them (test_runner.py)."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare.base.commands import Block, Command, Greeting, MemoryUse, Spin
from compare.base.communication import Communication
from compare.base.interface import Backend, Memory, RunSpec
from compare.execution import energy, usage
from compare.execution.energy import Energy, Look
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import nvml
from compare.worker.worker import Worker
from tests.fakebackend import plans

COMMUNICATION = Communication(exposed_seconds=0.001)


class Said:
    """A child that only says what it was asked."""

    def __init__(self, asked: list[str]) -> None:
        self._asked, self.given = asked, dict[str, Command[Any]]()

    def greet(self) -> Greeting:
        return Greeting(1, "fake", {})

    def call(self, command: Command[Any]) -> Any:
        self._asked.append(command.name)
        self.given[command.name] = command
        return {"spin": 70, "communication": COMMUNICATION}.get(command.name)

    def send(self, command: Command[Any]) -> None:
        self._looks = 0

    def has_replied(self, command: Command[Any]) -> bool:
        self._looks += 1
        return self._looks > 3

    def reply(self, command: Command[Any]) -> Any:
        return self.call(command)

    def close(self) -> None:
        if self._asked[-1] != "close":  # to close twice is nothing more
            self._asked.append("close")


@pytest.mark.parametrize(
    ("communication", "devices", "asked"),
    [(False, 1, []), (True, 1, []), (False, 2, []), (True, 2, ["open", "communication", "close"])],
)
def test_on_a_gpu_only_what_is_asked_for_and_unknown_takes_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, communication: bool, devices: int, asked: list[str]
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), energy=True, communication=communication)
    launcher = Launcher(replace(plan, device="cuda"), tmp_path)
    done, told = list[str](), list[str]()
    monkeypatch.setattr(launcher, "start", lambda *_, **__: Said(done))
    monkeypatch.setattr(launcher, "spec", lambda _, **__: SimpleNamespace(devices=devices))
    monkeypatch.setattr(launcher, "devices_here", lambda _: devices)
    good, bad = outcomes = [ContenderRun(contender, memory=Memory()) for contender in plan.contenders]
    bad.status = "crash"
    usage.measure(launcher, RunState(plan, outcomes), lambda doing, *_: told.append(doing))
    assert done == asked
    assert told == (["usage of fake"] if asked else [])
    assert good.energy is None  # measured in a round
    one = Communication(reason="one device has none to communicate with")
    assert good.communication == ((COMMUNICATION if devices > 1 else one) if communication else None)
    assert (bad.energy, bad.communication) == (None, None)


def _measure_energy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any], device: str = "cuda", **changes: Any
) -> list[ContenderRun]:
    """Return two contenders after `usage.measure_energy`, and note in `asked` what was measured."""

    def measured(train: Callable[[Look], int], count: int, idle_watts: float | None) -> Energy:
        asked.append((count, idle_watts))
        return Energy(joules_per_step=2.0, idle_watts=100.0, steps=train(lambda: asked.append("look")))

    plans.register(monkeypatch, folder)
    plan = plans.make(folder / "out", ("fake", "other"), **{"energy": True, **changes})
    monkeypatch.setattr("compare.execution.usage.energy.measure", measured)
    runs = [ContenderRun(contender, steps_per_block=40) for contender in plan.contenders]
    children = {run.contender.name: Said(asked) for run in runs}
    launcher = Launcher(replace(plan, device=device), folder)
    usage.measure_energy(launcher, cast(Any, children), runs)
    usage.measure_energy(launcher, cast(Any, children), runs)  # a later round measures nothing again
    spun = Spin(energy.WINDOW_SECONDS, 40)
    assert all(child.given.get("spin", spun) == spun for child in children.values())
    return runs


def test_energy_is_that_of_blocks_as_they_are_timed_and_the_idle_power_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()
    runs = _measure_energy(tmp_path, monkeypatch, asked)
    assert [each for each in asked if each != "look"] == [(1, None), "spin", (1, 100.0), "spin"]
    assert asked.count("look") == 2 * 3
    assert [run.energy for run in runs] == [Energy(joules_per_step=2.0, idle_watts=100.0, steps=70)] * 2


@pytest.mark.parametrize(
    ("device", "energy", "reason"), [("cuda", False, "not asked for"), ("cpu", True, "the run trains on the CPU")]
)
def test_energy_that_nobody_can_or_wants_to_measure_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, energy: bool, reason: str
) -> None:
    asked = list[Any]()
    runs = _measure_energy(tmp_path, monkeypatch, asked, device, energy=energy)
    assert ([run.energy for run in runs], asked) == ([Energy(reason=reason)] * 2, [])


def test_a_window_of_energy_is_beyond_the_deadline_of_a_block() -> None:
    assert Spin(4, 7).seconds(None) == 4 + Block.deadline
    assert Spin(4, 7).seconds(5.0) == 9


@pytest.mark.parametrize(("process", "known"), [(5, True), (None, False)])
def test_memory_of_a_process_that_is_not_told_is_absent_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: int | None, known: bool
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"))
    outcome = ContenderRun(plan.contenders[0])
    *_, measured = usage.make_memory_calls(Launcher(plan, tmp_path), outcome)
    measured.keep(MemoryUse(Memory(live_peak_bytes=7, absent={"static_bytes": "no plan"}), process))
    absent = {"static_bytes": "no plan"}
    why = {"process_bytes": "NVML is not there or does not list this process"}
    assert outcome.memory == Memory(7, process_bytes=process, absent=absent if known else absent | why)


def test_energy_of_a_contender_on_several_machines_is_absent_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake:stock+ddp", "other:stock+ddp"), devices=2, batch_size=8, energy=True)
    two = SimpleNamespace(count=2, share=lambda: None)
    launcher = Launcher(replace(plan, device="cuda", cluster=two), tmp_path)
    outcome = ContenderRun(plan.contenders[0], memory=Memory())
    usage.measure_energy(launcher, {}, [outcome])
    assert outcome.energy == Energy(reason="counted on the first machine only, and it trains on several")
    one = replace(plan.contenders[0], tuning="stock")
    assert usage.explain_no_energy(launcher, ContenderRun(one)) is None


@pytest.mark.parametrize(("told", "held"), [(7 << 30, 7 << 30), (None, 0)])
def test_what_a_process_holds_is_that_of_a_gpu(monkeypatch: pytest.MonkeyPatch, told: int | None, held: int) -> None:
    monkeypatch.setattr(nvml, "read_process_bytes", lambda pid: told if pid == os.getpid() else None)
    worker = Worker(cast(Backend, None), lambda: 0.0)
    worker._spec = cast(RunSpec, SimpleNamespace(device="cuda"))
    assert worker.held() == held
