import gc
import os
import signal
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare.base import commands
from compare.base.commands import Command
from compare.base.interface import ContenderFailed
from compare.execution.child import Child
from tests.fakebackend import BACKENDS, plans

pytestmark = pytest.mark.slow

SHORT = 1.5
"""Seconds until a child that hangs is given up."""


@dataclass(frozen=True)
class Unknown(Command[None]):
    """A command that no worker knows, sent under a name of the test's."""

    name: str  # pyright: ignore[reportIncompatibleVariableOverride] -- a real command's name belongs to its class
    deadline = plans.DEADLINE

    def message(self) -> dict[str, Any]:
        return {"command": self.name}


class Nursery:
    """Starts fake children with logs in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[Child] = []

    def child(self, **behaviour: Any) -> Child:
        variables = plans.environment(self.folder, {"fake": behaviour})
        child = Child("fake", BACKENDS["fake"].module, variables, self.folder)
        self.children.append(child)
        return child

    def failure(self, command: Command[Any], **behaviour: Any) -> ContenderFailed:
        """Return how a child fails that has a fault when the command is called."""
        child = self.child(**behaviour)
        try:
            child.greet(plans.DEADLINE)
            child.call(command, plans.DEADLINE)
        except ContenderFailed as failure:
            return failure
        raise AssertionError(f"{command.name} did not fail")

    def family(self) -> list[int]:
        return plans.started(self.folder)


@pytest.fixture
def nursery(tmp_path: Path) -> Generator[Nursery]:
    gc.collect()  # what tests before it have left open in reference cycles would be closed meanwhile
    gc.freeze()  # what is left need not be looked at again
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- names only
    nursery = Nursery(tmp_path)
    yield nursery
    for child in nursery.children:
        child.close()
        child.close()
    assert not plans.remaining(nursery.family())
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208 -- names only


def test_a_child_greets_and_answers_until_it_is_closed(nursery: Nursery) -> None:
    child = nursery.child()
    hello = child.greet(plans.DEADLINE)
    assert (hello.backend, list(hello.versions)) == ("fake", ["numpy"])
    assert (child.call(commands.IdleMemory("cpu"), plans.DEADLINE) or 0) > 1 << 20
    assert nursery.family() == [child.pid]
    child.close()
    assert not plans.remaining([child.pid], within=0)


@pytest.mark.parametrize("name", ["compare.py", "queue.py", "numpy.py"])
def test_a_script_in_the_current_folder_hides_no_module(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (nursery.folder / name).write_text("raise SystemExit('a script ran')")
    monkeypatch.chdir(nursery.folder)
    assert nursery.child().greet(plans.DEADLINE).backend == "fake"


def test_a_closed_child_fails_and_never_reaches_another(nursery: Nursery) -> None:
    closed = nursery.child()
    closed.greet(plans.DEADLINE)
    closed.close()
    other = nursery.child()  # its pipe has the closed one's descriptors
    other.greet(plans.DEADLINE)
    with pytest.raises(ContenderFailed):
        closed.call(commands.IdleMemory(device="cpu"), plans.DEADLINE)
    assert (other.call(commands.IdleMemory("cpu"), plans.DEADLINE) or 0) > 1 << 20


def test_an_unknown_command_and_a_call_too_early_are_crashes_with_a_reason(nursery: Nursery) -> None:
    assert "unknown command 'dance'" in nursery.failure(Unknown("dance")).reason
    assert "no session is open" in nursery.failure(commands.Settings()).reason
    assert "unknown command '_time'" in nursery.failure(Unknown("_time")).reason


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("hang", "timeout", "starting took longer than its deadline of 1.5 s"),
        ("hang-native", "timeout", "starting took longer than its deadline of 1.5 s"),
        ("grandchild-hang", "timeout", "deadline"),
        ("exit", "crash", "starting: ended with exit code 7; last output: nothing"),
        ("kill", "crash", "starting: killed by signal 9 (SIGKILL)"),
        ("fork-die", "crash", "starting: killed by signal 9 (SIGKILL)"),
        ("raise", "crash", "ended with exit code 1; last output: with a second line"),
        ("garbage", "crash", "starting: broken message: not JSON: b'{not json'"),
        ("protocol", "crash", "speaks protocol 2, this is 1"),
    ],
)
def test_a_child_that_does_not_come_up_is_typed_in_time(nursery: Nursery, fault: str, status: str, reason: str) -> None:
    start = time.monotonic()
    child = nursery.child(fault=fault, at="start")
    if fault == "grandchild-hang":
        plans.until(lambda: (nursery.folder / "grandchildren.log").exists())
    with pytest.raises(ContenderFailed) as caught:
        child.greet(SHORT if status == "timeout" else plans.DEADLINE)
    assert time.monotonic() - start < plans.DEADLINE
    assert caught.value.status == status
    assert reason in caught.value.reason
    assert not plans.remaining(nursery.family())


def test_a_deadline_runs_from_when_a_command_was_sent(nursery: Nursery) -> None:
    child, command = nursery.child(), commands.IdleMemory("cpu")
    child.greet(plans.DEADLINE)
    child.send(command)
    plans.until(lambda: child.has_replied(command, plans.DEADLINE))
    assert (child.reply(command, 0) or 0) > 1 << 20  # it is there, however late it is asked for
    os.kill(child.pid, signal.SIGSTOP)
    child.send(command)
    assert not child.has_replied(command, plans.DEADLINE)
    time.sleep(SHORT)
    assert child.has_replied(command, SHORT)  # it will be a failure
    with pytest.raises(ContenderFailed, match=r"idle_memory took longer than its deadline of 1\.5 s"):
        child.reply(command, SHORT)


def test_a_backend_that_cannot_be_found_is_a_crash_that_says_so(nursery: Nursery) -> None:
    child = Child("absent", "tests.fakebackend.absent", plans.environment(nursery.folder, {}), nursery.folder)
    with pytest.raises(ContenderFailed, match=r"exit code 1; last output: .*No module named tests.fakebackend.absent"):
        child.greet(plans.DEADLINE)


def test_the_kernels_memory_killer_is_told_from_other_kills(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = iter([3, 4])
    monkeypatch.setattr("compare.base.process_family.count_kernel_kills", lambda: next(kills))
    failure = nursery.failure(commands.Settings(), fault="kill", at="start")
    assert failure.status == "oom"
    assert "memory ran out" in failure.reason


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a file")
def test_the_kernel_kills_a_child_before_its_parent(nursery: Nursery) -> None:
    child = nursery.child()
    child.greet(plans.DEADLINE)
    own, its = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", child.pid))
    assert its > own


def test_what_a_child_prints_does_not_reach_the_pipe_or_us(nursery: Nursery, capfd: pytest.CaptureFixture[str]) -> None:
    child = nursery.child(fault="print", at="start")
    assert child.greet(plans.DEADLINE).protocol == 1
    assert child.call(commands.IdleMemory(device="cpu"), plans.DEADLINE)
    assert capfd.readouterr() == ("", "")
    assert sum(log.stat().st_size for log in nursery.folder.glob("*-fake.log")) >= 4 << 20


@pytest.mark.parametrize(
    "message", [b'{"answer": 1}', b'{"error": 1}', b'{"error": {}}', b"{}", b'{"value": "many"}', b'{"value": 1.5}']
)
def test_a_reply_that_is_no_reply_is_a_crash(nursery: Nursery, message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    child = nursery.child()
    child.greet(plans.DEADLINE)
    monkeypatch.setattr(child._channel, "receive", lambda timeout: __import__("json").loads(message))
    with pytest.raises(ContenderFailed, match="crash: idle_memory: broken message"):
        child.call(commands.IdleMemory(device="cpu"), plans.DEADLINE)


def test_a_greeting_without_versions_is_a_crash(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    child = nursery.child()
    monkeypatch.setattr(child._channel, "receive", lambda timeout: {"protocol": 1})
    with pytest.raises(ContenderFailed, match="crash: starting: broken message"):
        child.greet(plans.DEADLINE)


def test_a_process_that_cannot_be_started_is_a_crash(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(nursery.folder / "no-python"))
    with pytest.raises(ContenderFailed, match="crash: the process could not be started: No such file"):
        nursery.child()


def test_closing_ends_grandchildren_and_a_dead_childs_orphans(nursery: Nursery) -> None:
    child = nursery.child(fault="grandchild", at="start")
    child.greet(plans.DEADLINE)
    child_pid, grandchild = nursery.family()
    assert plans.remaining([child_pid, grandchild], within=0) == [child_pid, grandchild]
    os.kill(child_pid, 9)
    with pytest.raises(ContenderFailed, match="SIGKILL"):
        child.call(commands.IdleMemory(device="cpu"), plans.DEADLINE)
    assert not plans.remaining([child_pid, grandchild])


def test_processes_lost_elsewhere_are_noticed_long_before_the_deadline(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    share: Any = SimpleNamespace(lost=lambda: ("crash", "node2: rank 1 was killed"), end=lambda: None)
    monkeypatch.setattr("compare.execution.child._LAST_WORDS_SECONDS", 0.1)
    child = nursery.child(fault="hang", at="start")
    child._share = share
    assert child.has_greeted()
    with pytest.raises(ContenderFailed, match="starting; node2: rank 1 was killed"):
        child.greet(3600)


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        ("refused", "refused", "idle_memory: why"),
        ("oom", "oom", "idle_memory: why"),
        ("crash", "timeout", "idle_memory: why; node2: rank 1 was lost"),
    ],
)
def test_processes_lost_elsewhere_explain_a_crash_and_nothing_else(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch, said: str, status: str, reason: str
) -> None:
    child = nursery.child()
    child.greet(plans.DEADLINE)
    child._share = cast(Any, SimpleNamespace(lost=lambda: ("timeout", "node2: rank 1 was lost"), end=lambda: None))
    monkeypatch.setattr(child._channel, "receive", lambda timeout: {"error": {"status": said, "reason": "why"}})
    with pytest.raises(ContenderFailed) as caught:
        child.call(commands.IdleMemory(device="cpu"), plans.DEADLINE)
    assert (caught.value.status, caught.value.reason) == (status, reason)


@pytest.mark.parametrize(("told", "full"), [({"disk_full": True}, True), ({"disk_full": False}, False), ({}, False)])
def test_a_failure_tells_whether_the_disk_was_full(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch, told: dict[str, bool], full: bool
) -> None:
    child = nursery.child()
    child.greet(plans.DEADLINE)
    error = {"status": "refused", "reason": "no room"} | told
    monkeypatch.setattr(child._channel, "receive", lambda timeout: {"error": error})
    with pytest.raises(ContenderFailed) as caught:
        child.call(commands.IdleMemory(device="cpu"), plans.DEADLINE)
    assert (caught.value.disk_full, caught.value.raised) == (full, True)
