"""What is measured of a contender on a GPU while nothing else works; on a CPU, whole runs show it (test_runner.py)."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare.base.communication import absent
from compare.base.interface import Backend, RunSpec
from compare.execution import usage
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import nvml
from compare.worker.server import Worker
from tests.fakebackend import plans

ENERGY, COMMUNICATION = {"joules_per_step": 2.0}, {"exposed_seconds": 0.001}


class Said:
    """A child that only says what it was asked."""

    def __init__(self, asked: list[str]) -> None:
        self._asked, self.given = asked, dict[str, Any]()

    def greet(self, deadline: float) -> dict[str, Any]:
        return {"versions": {}}

    def call(self, command: str, deadline: float, **arguments: Any) -> Any:
        self._asked.append(command)
        self.given[command] = {"deadline": deadline, **arguments}
        return {"warm_up": {"steps_per_block": 7}, "spin": 70, "communication": COMMUNICATION}.get(command)

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
    def measured(train: Callable[[], int], count: int) -> dict[str, Any]:
        assert (train(), count) == (70, devices)
        return ENERGY

    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), energy=energy, communication=communication)
    launcher = Launcher(replace(plan, device="cuda"), tmp_path)
    done, told = list[str](), list[str]()
    monkeypatch.setattr("compare.execution.usage.energy.measure", measured)
    monkeypatch.setattr(launcher, "start", lambda *_, **__: Said(done))
    monkeypatch.setattr(launcher, "spec", lambda _: {"devices": devices})
    monkeypatch.setattr(launcher, "devices_here", lambda _: devices)
    good, bad = outcomes = [ContenderRun(contender, memory={}) for contender in plan.contenders]
    bad.status = "crash"
    usage.measure(launcher, RunState(outcomes), lambda doing, *_: told.append(doing))
    assert done == asked
    assert told == (["usage of fake"] if asked else [])
    assert good.energy == (ENERGY if energy else usage.energy.absent("not asked for"))
    one = absent("one device has none to communicate with")
    assert good.communication == ((COMMUNICATION if devices > 1 else one) if communication else None)
    assert (bad.energy, bad.communication) == (None, None)


def test_energy_is_that_of_blocks_as_they_are_timed_and_a_window_is_beyond_their_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), energy=True)
    launcher, child = Launcher(replace(plan, device="cuda"), tmp_path), Said([])
    monkeypatch.setattr("compare.execution.usage.energy.measure", lambda train, count: {"steps": train()})
    monkeypatch.setattr(launcher, "start", lambda *_, **__: child)
    outcome = ContenderRun(plan.contenders[0], memory={}, steps_per_block=40)
    usage.measure(launcher, RunState([outcome]), lambda *_: None)
    assert outcome.energy == {"steps": 70}
    assert child.given["warm_up"]["steps"] == 40
    assert child.given["spin"] == {"deadline": 10 + plan.deadlines["block"], "seconds": 10, "steps": 7}


@pytest.mark.parametrize(("process", "known"), [(5, True), (None, False)])
def test_memory_of_a_process_that_is_not_told_is_absent_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: int | None, known: bool
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"))
    outcome = ContenderRun(plan.contenders[0])
    *_, measured = usage.memory(Launcher(plan, tmp_path), outcome)
    measured.keep({"framework": {"live_peak_bytes": 7, "absent": {"static_bytes": "no plan"}}, "process": process})
    absent = {"static_bytes": "no plan"}
    why = {"process_bytes": "NVML is not there or does not list this process"}
    told = {"process_bytes": 5, "absent": absent} if known else {"absent": absent | why}
    assert outcome.memory == {"live_peak_bytes": 7} | told


@pytest.mark.parametrize(("tuning", "counted"), [("stock+ddp", False), ("stock", True)])
def test_energy_of_a_contender_on_several_machines_is_absent_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuning: str, counted: bool
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", (f"fake:{tuning}", "other:stock+ddp"), devices=2, batch_size=8, energy=True)
    launcher = Launcher(replace(plan, device="cuda", cluster=SimpleNamespace(count=2, share=lambda: None)), tmp_path)
    asked, numbers = list[str](), list[int]()

    def measured(train: Callable[[], int], count: int) -> dict[str, Any]:
        numbers.append(count)
        return ENERGY

    monkeypatch.setattr("compare.execution.usage.energy.measure", measured)
    monkeypatch.setattr(launcher, "start", lambda *_, **__: Said(asked))
    outcome = ContenderRun(plan.contenders[0], memory={})
    usage.measure(launcher, RunState([outcome]), lambda *_: None)
    why = "counted on the first machine only, and it trains on several"
    assert outcome.energy == (ENERGY if counted else usage.energy.absent(why))
    assert (numbers, bool(asked)) == (([1], True) if counted else ([], False))


@pytest.mark.parametrize(
    ("told", "device", "held"), [(7 << 30, "cuda", 7 << 30), (None, "cuda", 0), (7 << 30, "cpu", 0)]
)
def test_what_a_process_holds_is_that_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, told: int | None, device: str, held: int
) -> None:
    monkeypatch.setattr(nvml, "process_bytes", lambda pid: told if pid == os.getpid() else None)
    worker = Worker(cast(Backend, None), lambda: 0.0)
    worker._spec = cast(RunSpec, SimpleNamespace(device=device))
    assert worker.held() == held
