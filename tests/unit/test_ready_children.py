"""Children that start ahead: they import while nothing is timed, and each is used once or ended."""

from collections.abc import Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import psutil
import pytest

from compare.base.commands import Block, Command, Open, WarmUp
from compare.base.interface import ContenderFailed
from compare.execution import ready_children
from compare.execution.child import Child
from compare.execution.ready_children import ReadyChildren
from compare.machine import cpu
from compare.settings.plan import Plan
from tests.unit.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what happens to children from now on: `start`, `greeted`, and the names of commands."""
    happened, begin, greet, send = list[str](), Child.__init__, Child.greet, Child.send

    def begun(child: Child, *arguments: Any, **named: Any) -> None:
        happened.append("start")
        begin(child, *arguments, **named)

    def greeted(child: Child, seconds: float | None = None) -> Any:
        if child._greeting is None:
            happened.append("greeted")
        return greet(child, seconds)

    def sent(child: Child, command: Command[Any]) -> None:
        happened.append("first steps" if isinstance(command, WarmUp) and not command.settles else command.name)
        send(child, command)

    monkeypatch.setattr(Child, "__init__", begun)
    monkeypatch.setattr(Child, "greet", greeted)
    monkeypatch.setattr(Child, "send", sent)
    return happened


def test_sessions_of_coming_rounds_open_before_the_first_round(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 9)
    ahead, send = list[list[str]](), Child.send_ahead

    def noted(child: Child, commands: Sequence[Command[Any]]) -> None:
        ahead.append([command.name for command in commands])
        assert Block.name not in events
        send(child, commands)

    monkeypatch.setattr(Child, "send_ahead", noted)
    result = stage.run("fake", "other", agreement=False, rounds=3)
    first, later = ["open"], ["open", "block"]  # the first round loads alone, because that time is reported
    assert ahead == [first, first, later, later, later, later]
    assert all(len(each["step_seconds"]["samples"]) == 3 for each in result["contenders"])
    assert all(each["cached_compile_seconds"] is not None for each in result["contenders"])


def test_a_session_that_fails_ahead_is_opened_again_in_its_round(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 9)
    fault = {"fault": "oom", "at": "open", "process": 2}
    result = stage.run("fake", "other", script={"other": fault}, agreement=False, rounds=3)
    assert [each["status"] for each in result["contenders"]] == ["ok", "ok"]
    assert result["spec"]["design"] == "alternating"


@pytest.mark.parametrize("at_once", [0, 9])
def test_a_run_with_a_certificate_starts_no_process_without_need(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, events: list[str], at_once: int
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: at_once)
    stage.cache = stage.folder / "cache"
    script = {"other": {"step_seconds": 3e-3}, "fake": {"step_seconds": 1e-3}}
    first = stage.run("fake", "other", script=script, rounds=None)
    # Each contender has one process for training, one for memory and three for rounds. Two records and the noise of the
    # baseline make five jobs at most.
    assert events.count("start") == events.count("greeted") <= 2 * (1 + 1 + 3) + 5
    started = len(events)
    again = stage.run("fake", "other", script=script, rounds=None)
    assert events[started:].count("start") == 2 * (1 + 1 + 3)  # the certificate is kept
    for result in (first, again):
        assert (result["agreement"]["status"], result["spec"]["rounds"]) == ("pass", 3)


@pytest.mark.parametrize("at_once", [1, 3, 9])
def test_with_spare_cores_children_of_several_rounds_import_side_by_side(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, events: list[str], at_once: int
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: at_once)
    result = stage.run("fake", "other", agreement=False, rounds=3)
    assert result["spec"]["rounds"] == 3
    importing = accumulate({"start": 1, "greeted": -1}.get(event, 0) for event in events)
    assert max(importing) >= 2 * min(3, at_once)
    # A process for first steps and training, one for memory, and one for each round: none more, and none twice.
    assert events.count("start") == events.count("greeted") == 2 * (2 + 3)
    assert events.count(Open.name) == 2 * (3 + 3)  # the training opens its session again


def test_no_process_imports_while_a_block_is_timed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 3)
    stage.run("fake", "other", agreement=False, rounds=5)
    importing = 0
    for event in events:
        importing += {"start": 1, "greeted": -1}.get(event, 0)
        if event in (Block.name, WarmUp.name):
            assert importing == 0, events


def test_no_process_starts_ahead_while_the_children_of_a_round_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 2)
    stage.run("fake", "other", agreement=False, rounds=5)
    kinds = groupby(event for event in events if event in ("start", Block.name))
    starts = [len(list(group)) for event, group in kinds if event == "start"]
    assert starts[-2:] == [4, 2]


@pytest.mark.parametrize("searches", [True, False])
def test_a_search_for_kernels_does_not_wait_for_the_imports_of_rounds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, events: list[str], searches: bool
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 9)
    monkeypatch.setattr(Plan, "keeps_search", lambda plan, contender: searches)
    stage.run("fake", "other", agreement=False, rounds=3)
    before_work = events[: events.index(Open.name)]
    assert before_work.count("start") == (2 if searches else 2 + 2 * 3)


@pytest.mark.parametrize(("have_cores", "ahead"), [(False, 3), (True, 5)])
def test_rounds_start_ahead_up_to_the_next_look_and_to_the_second_one_where_cores_are_spare(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, events: list[str], have_cores: bool, ahead: int
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 9)
    monkeypatch.setattr(ready_children, "have_cores", lambda processes: have_cores)
    script = {"other": {"step_seconds": 3e-3}, "fake": {"step_seconds": 1e-3}}
    result = stage.run("fake", "other", script=script, agreement=False, rounds=None)
    assert result["comparisons"][0]["stopped"]["rounds"] == 3
    assert events.count("start") == 2 * (2 + ahead)


def test_a_failure_of_a_waiting_child_belongs_to_its_round(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 9)
    fault = {"fault": "raise", "at": "start", "process": 3}
    result = stage.run("fake", "other", script={"other": fault}, agreement=False, rounds=3)
    assert [each["status"] for each in result["contenders"]] == ["ok", "crash"]
    assert result["contenders"][1]["reason"].startswith("timed rounds: starting")
    assert len(result["contenders"][1]["step_seconds"]["samples"]) == 1


class _Stub(Child):
    def __init__(self, failure: str | None = None) -> None:
        self.failure, self.is_closed = failure, False

    def greet(self, seconds: float | None = None) -> Any:
        if self.failure:
            raise ContenderFailed("crash", self.failure)

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def _fail() -> Child:
    raise ContenderFailed("crash", "no process")


def test_waiting_children_are_taken_once_by_their_key_and_the_rest_is_ended() -> None:
    ready, stubs = ReadyChildren(), [_Stub() for _ in range(4)]
    rest = iter(stubs)
    ready.start([("a", lambda: next(rest)), ("a", lambda: next(rest)), ("b", lambda: next(rest))])
    ready.start([("a", lambda: next(rest)), ("b", _fail)])  # both wait already
    assert [ready.take(key) for key in ("a", "a", "a", "c")] == [stubs[0], stubs[1], None, None]
    ready.close()
    assert [stub.is_closed for stub in stubs] == [False, False, True, False]
    assert ready.take("b") is None


def test_a_child_that_cannot_be_started_ahead_is_left_to_its_own_time() -> None:
    ready = ReadyChildren()
    ready.start([("a", _fail), ("a", _Stub)])
    assert ready.take("a") is None


def test_a_child_that_fails_while_it_waits_says_so_when_it_is_taken() -> None:
    ready = ReadyChildren()
    ready.start([("a", lambda: _Stub("broken"))])
    ready.settle()
    with pytest.raises(ContenderFailed, match="broken"):
        ready.take("a")


@pytest.mark.parametrize(
    ("cores", "gigabytes", "processes", "most"),
    [(2, 64, 2, 4), (16, 64, 2, 16), (16, 8, 2, 2), (1, 64, 2, 2), (1, 1, 2, 0)],
)
def test_children_import_side_by_side_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, processes: int, most: int
) -> None:
    monkeypatch.setattr(cpu, "count_usable_cores", lambda: cores)
    memory = type("Memory", (), {"available": gigabytes * 2**30})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert ready_children.count_at_once(processes) == most
