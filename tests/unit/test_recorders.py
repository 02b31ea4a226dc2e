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

    def __init__(self, name: str, package: str, environment: dict[str, str], folder: Path) -> None:
        self._name = name
        self._looks = 0
        self.environments.append(environment)
        self.said.append(f"{name} starts")

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


def recorder(name: str, answers: list[str], *commands: tuple[str, int], **options: Any) -> Recorder:
    outcome = options.pop("outcome", None) or Outcome(contenders.parse(["fake", "other"])[name == "other"])
    asked = [Command(command, {"looks": looks}, "record", partial(list.append, answers)) for command, looks in commands]
    return Recorder(outcome, asked, "certificate", **options)


def test_none_waits_for_another(started: Launcher) -> None:
    answers: list[str] = []
    both = [recorder("fake", answers, ("long", 9)), recorder("other", answers, ("one", 1), ("two", 1), ("three", 1))]
    recorders.side_by_side(started, both)
    assert answers == ["one", "two", "three", "long"]
    assert Scripted.said[2:5] == ["fake begins long", "other begins one", "other ends one"]


def test_a_failure_ends_its_contenders_work_and_no_others(started: Launcher) -> None:
    answers: list[str] = []
    both = [recorder("fake", answers, ("broken", 0), ("never", 0)), recorder("other", answers, ("one", 3), ("two", 0))]
    recorders.side_by_side(started, both)
    assert (both[0].outcome.status, both[1].outcome.status, answers) == ("crash", "ok", ["one", "two"])
    assert Scripted.said[-1] == "other is closed"
    assert "fake is closed" in Scripted.said[:-1]


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "4")])
def test_children_side_by_side_share_the_cores(
    started: Launcher, monkeypatch: pytest.MonkeyPatch, cores: int, threads: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(environment, "cores", lambda: cores)
    recorders.side_by_side(started, [recorder(name, [], ("one", 0)) for name in ("fake", "other")])
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


def test_a_child_goes_on_with_its_contenders_work_unless_that_must_be_fresh(started: Launcher) -> None:
    answers: list[str] = []
    first = recorder("fake", answers, ("one", 0), fresh=True)
    rest = [
        recorder("fake", answers, (name, 0), outcome=first.outcome, fresh=name == "two") for name in ("two", "three")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "cores", lambda: 1)
        recorders.side_by_side(started, [first, *rest])
    assert sorted(answers) == ["one", "three", "two"]
    assert Scripted.said.count("fake starts") == Scripted.said.count("fake is closed") == 2  # not three


def test_no_more_children_than_one_above_the_cores(started: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cores", lambda: 2)
    recorders.side_by_side(started, [recorder("fake", [], ("one", 2), fresh=True) for _ in range(5)])
    said = [text.rpartition(" ")[2] for text in Scripted.said if text.endswith(("starts", "closed"))]
    alive = [said[: end + 1].count("starts") - said[: end + 1].count("closed") for end in range(len(said))]
    assert (max(alive), alive[-1], said.count("starts")) == (3, 0, 5)


def test_what_spares_its_contender_fails_alone_until_it_is_settled(started: Launcher) -> None:
    answers: list[str] = []
    spared = recorder("fake", answers, ("broken", 0), spares=True)
    other = recorder("fake", answers, ("one", 3), outcome=spared.outcome)
    recorders.side_by_side(started, [spared, other])
    assert (spared.outcome.status, answers) == ("ok", ["one"])
    spared.settle()
    assert (spared.outcome.status, spared.outcome.reason) == ("crash", "certificate: scripted")
