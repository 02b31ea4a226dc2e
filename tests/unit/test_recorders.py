"""Children that work side by side: each at its own pace, on its own part of the cores."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compare import certification, contenders, environment, launcher, pair, recorders, variables
from compare.certification import Case
from compare.interface import ContenderFailed
from compare.launcher import Launcher, Outcome
from compare.recorders import Command, Recorder
from tests.fakebackend import plans


class Scripted:
    """Stands for a child: an answer takes as many looks as its command says."""

    pid = 0
    said: list[str]
    environments: list[dict[str, str]]

    def __init__(self, name: str, package: str, environment: dict[str, str], folder: Path, share: None) -> None:
        self._name = name
        self.environments.append(environment)

    def greet(self, deadline: float) -> dict[str, Any]:
        return {"versions": {}}

    def send(self, command: str, looks: int) -> None:
        self.said.append(f"{self._name} begins {command}")
        self._looks = looks

    def has_replied(self, deadline: float) -> bool:
        self._looks -= 1
        return self._looks < 0

    def reply(self, command: str, deadline: float) -> str:
        if command == "broken":
            raise ContenderFailed("crash", "scripted")
        self.said.append(f"{self._name} ends {command}")
        return command

    def close(self) -> None:
        self.said.append(f"{self._name} is closed")


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    plans.register(monkeypatch, tmp_path)
    Scripted.said, Scripted.environments = [], []
    monkeypatch.setattr(launcher, "Child", Scripted)
    monkeypatch.setattr(recorders.time, "sleep", lambda _: None)
    return Launcher(plans.make(tmp_path / "out", ("fake", "other")), tmp_path)


def recorder(name: str, answers: list[str], *commands: tuple[str, int]) -> Recorder:
    outcome = Outcome(contenders.parse(["fake", "other"])[["fake", "other"].index(name)])
    asked = [Command(command, {"looks": looks}, "record", partial(list.append, answers)) for command, looks in commands]
    return Recorder(outcome, asked)


def test_none_waits_for_another(started: Launcher) -> None:
    answers: list[str] = []
    both = [recorder("fake", answers, ("long", 9)), recorder("other", answers, ("one", 1), ("two", 1), ("three", 1))]
    recorders.side_by_side(started, both, "certificate")
    assert answers == ["one", "two", "three", "long"]
    assert Scripted.said[:3] == ["fake begins long", "other begins one", "other ends one"]


def test_a_failure_ends_its_contenders_work_and_no_others(started: Launcher) -> None:
    answers: list[str] = []
    both = [recorder("fake", answers, ("broken", 0), ("never", 0)), recorder("other", answers, ("one", 3), ("two", 0))]
    recorders.side_by_side(started, both, "certificate")
    assert (both[0].outcome.status, both[1].outcome.status, answers) == ("crash", "ok", ["one", "two"])
    assert Scripted.said[-2:] == ["fake is closed", "other is closed"]


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "4")])
def test_children_side_by_side_share_the_cores(
    started: Launcher, monkeypatch: pytest.MonkeyPatch, cores: int, threads: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(environment, "cores", lambda: cores)
    recorders.side_by_side(started, [recorder(name, [], ("one", 0)) for name in ("fake", "other")], "certificate")
    assert [each["OMP_NUM_THREADS"] for each in Scripted.environments] == [threads, threads]
    started.started(Outcome(contenders.parse(["fake", "other"])[0]), purpose="training")
    assert "OMP_NUM_THREADS" not in Scripted.environments[-1]  # timed alone, with every core
    assert variables.thread_environment(4, {"OMP_NUM_THREADS": "3"}) == {"OMP_NUM_THREADS": "3"}


def test_what_runs_once_to_match_a_pair_is_not_optimised_and_nothing_else(started: Launcher) -> None:
    outcomes = [Outcome(each) for each in contenders.parse(["torch", "jax"])]
    for purpose in ("matching", "certificate", "trajectory", "training"):
        for outcome in outcomes:
            started.started(outcome, purpose=purpose)
    found = ["JAX_DISABLE_MOST_OPTIMIZATIONS" in each for each in Scripted.environments]
    assert found == [False, True, *[False] * 6]


@pytest.mark.parametrize(
    ("size", "resizable", "other"), [(32, True, 33), (33, True, 32), (1, True, 2), (32, False, None)]
)
def test_a_pair_is_certified_at_the_size_asked_for_and_at_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, resizable: bool, other: int | None
) -> None:
    plans.register(monkeypatch, tmp_path)
    workload = pair("a:b", "c:d", image=(size, size, 3), classes=4)
    made = plans.make(tmp_path / "out", ("fake", "other"), workload=workload, accumulate=2, batch_size=32)
    plan = replace(made, resizable=resizable)
    assert certification.adversarial(plan) == (certification.native(plan), Case(6, other))
