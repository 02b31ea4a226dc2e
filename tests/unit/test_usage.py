"""What is measured of a contender on a GPU while nothing else works; on a CPU, whole runs show it (test_runner.py)."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare.base.commands import Block, Command, Greeting, MemoryUse, Spin, WarmUp, WarmUpTimes
from compare.base.communication import Communication
from compare.base.interface import Backend, Memory, RunSpec
from compare.execution import usage
from compare.execution.energy import Energy
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.execution.timed_round import BLOCK_SECONDS
from compare.machine import nvml
from compare.worker.worker import Worker
from tests.fakebackend import plans

ENERGY, COMMUNICATION = Energy(joules_per_step=2.0), Communication(exposed_seconds=0.001)


class Said:
    """A child that only says what it was asked."""

    def __init__(self, asked: list[str]) -> None:
        self._asked, self.given = asked, dict[str, Command[Any]]()

    def greet(self) -> Greeting:
        return Greeting(1, "fake", {})

    def call(self, command: Command[Any]) -> Any:
        self._asked.append(command.name)
        self.given[command.name] = command
        times = WarmUpTimes(0.0, 0.0, 0.0, True, 7, [])
        return {"warm_up": times, "spin": 70, "communication": COMMUNICATION}.get(command.name)

    def close(self) -> None:
        if self._asked[-1] != "close":  # to close twice is nothing more
            self._asked.append("close")


@pytest.mark.parametrize(
    ("energy", "communication", "devices", "asked"),
    [
        (False, False, 1, []),
        (False, True, 1, []),
        (True, False, 1, ["open", "warm_up", "spin", "close"]),
        (False, True, 2, ["open", "communication", "close"]),
        (True, True, 2, ["open", "warm_up", "spin", "communication", "close"]),
    ],
)
def test_on_a_gpu_only_what_is_asked_for_and_unknown_takes_a_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    energy: bool,
    communication: bool,
    devices: int,
    asked: list[str],
) -> None:
    def measured(train: Callable[[], int], count: int) -> Energy:
        assert (train(), count) == (70, devices)
        return ENERGY

    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), energy=energy, communication=communication)
    launcher = Launcher(replace(plan, device="cuda"), tmp_path)
    done, told = list[str](), list[str]()
    monkeypatch.setattr("compare.execution.usage.energy.measure", measured)
    monkeypatch.setattr(launcher, "start", lambda *_, **__: Said(done))
    monkeypatch.setattr(launcher, "spec", lambda _: SimpleNamespace(devices=devices))
    monkeypatch.setattr(launcher, "devices_here", lambda _: devices)
    good, bad = outcomes = [ContenderRun(contender, memory=Memory()) for contender in plan.contenders]
    bad.status = "crash"
    usage.measure(launcher, RunState(plan, outcomes), lambda doing, *_: told.append(doing))
    assert done == asked
    assert told == (["usage of fake"] if asked else [])
    assert good.energy == (ENERGY if energy else Energy(reason="not asked for"))
    one = Communication(reason="one device has none to communicate with")
    assert good.communication == ((COMMUNICATION if devices > 1 else one) if communication else None)
    assert (bad.energy, bad.communication) == (None, None)


def test_energy_is_that_of_blocks_as_they_are_timed_and_a_window_is_beyond_their_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), energy=True)
    launcher, child = Launcher(replace(plan, device="cuda"), tmp_path), Said([])
    monkeypatch.setattr("compare.execution.usage.energy.measure", lambda train, count: Energy(steps=train()))
    monkeypatch.setattr(launcher, "start", lambda *_, **__: child)
    outcome = ContenderRun(plan.contenders[0], memory=Memory(), steps_per_block=40)
    usage.measure(launcher, RunState(plan, [outcome]), lambda *_: None)
    assert outcome.energy == Energy(steps=70)
    assert child.given["warm_up"] == WarmUp(BLOCK_SECONDS["cuda"], 40)
    assert child.given["spin"] == Spin(10, 7)
    assert child.given["spin"].seconds(None) == 10 + Block.deadline
    assert child.given["spin"].seconds(5.0) == 15


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


@pytest.mark.parametrize(("tuning", "counted"), [("stock+ddp", False), ("stock", True)])
def test_energy_of_a_contender_on_several_machines_is_absent_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuning: str, counted: bool
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", (f"fake:{tuning}", "other:stock+ddp"), devices=2, batch_size=8, energy=True)
    launcher = Launcher(replace(plan, device="cuda", cluster=SimpleNamespace(count=2, share=lambda: None)), tmp_path)
    asked, numbers = list[str](), list[int]()

    def measured(train: Callable[[], int], count: int) -> Energy:
        numbers.append(count)
        return ENERGY

    monkeypatch.setattr("compare.execution.usage.energy.measure", measured)
    monkeypatch.setattr(launcher, "start", lambda *_, **__: Said(asked))
    outcome = ContenderRun(plan.contenders[0], memory=Memory())
    usage.measure(launcher, RunState(plan, [outcome]), lambda *_: None)
    why = "counted on the first machine only, and it trains on several"
    assert outcome.energy == (ENERGY if counted else Energy(reason=why))
    assert (numbers, bool(asked)) == (([1], True) if counted else ([], False))


@pytest.mark.parametrize(
    ("told", "device", "held"), [(7 << 30, "cuda", 7 << 30), (None, "cuda", 0), (7 << 30, "cpu", 0)]
)
def test_what_a_process_holds_is_that_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, told: int | None, device: str, held: int
) -> None:
    monkeypatch.setattr(nvml, "read_process_bytes", lambda pid: told if pid == os.getpid() else None)
    worker = Worker(cast(Backend, None), lambda: 0.0)
    worker._spec = cast(RunSpec, SimpleNamespace(device=device))
    assert worker.held() == held
