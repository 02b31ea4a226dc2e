"""Children that carry out lists of commands side by side, where nothing is timed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compare import environment
from compare.child import Child
from compare.interface import ContenderFailed
from compare.launcher import Launcher, Outcome

_POLL_SECONDS = 0.02


@dataclass
class Command:
    """One command to a child: its name and arguments, its deadline by name, and what becomes of the answer."""

    name: str
    arguments: dict[str, Any]
    deadline: str
    keep: Callable[[Any], None]


@dataclass
class Recorder:
    """What a child of a contender is still to be asked, and the child, once it is its turn.

    Attributes:
        outcome: the contender's. A failure marks it at once, which ends all its work, unless `spares`.
        commands: those that are left, in order.
        purpose: what it is for, as `compare.launcher.Launcher.started` knows it.
        fresh: its child has done nothing before.
        spares: a failure ends this work only, and marks the contender when `settle` is called.
        failure: status and reason.
    """

    outcome: Outcome
    commands: list[Command]
    purpose: str
    fresh: bool = False
    spares: bool = False
    child: Child | None = None
    failure: tuple[str, str] | None = None

    @property
    def at_work(self) -> bool:
        """Whether there is more to ask, and a contender to ask it of."""
        return bool(self.commands) and self.failure is None and self.outcome.status == "ok"

    def fail(self, failure: ContenderFailed) -> None:
        """Note a failure."""
        self.failure = failure.status, f"{self.purpose}: {failure.reason}"
        if not self.spares:
            self.settle()

    def settle(self) -> None:
        """Mark the contender with this recorder's failure, unless it has failed already."""
        if self.failure is not None and self.outcome.status == "ok":
            self.outcome.status, self.outcome.reason = self.failure


def side_by_side(launcher: Launcher, recorders: Sequence[Recorder]) -> None:
    """Have children carry out all recorders' commands, each at its own pace.

    There is one child at a time more than there are cores, so that no core waits while one of them waits for its next
    command. A child that is done goes on with what is left of the same contender's: its framework is imported.
    """
    pool = _Pool(launcher, recorders)
    try:
        pool.fill()
        while pool.working:
            time.sleep(_POLL_SECONDS)
            pool.go_on()
            pool.fill()
    finally:
        for recorder in recorders:
            if recorder.child is not None:
                recorder.child.close()


class _Pool:
    def __init__(self, launcher: Launcher, recorders: Sequence[Recorder]) -> None:
        self._launcher = launcher
        self._waiting = list(recorders)
        self._most = min(len(recorders), environment.cores() + 1)
        self._greeted: set[Child] = set()
        self.working: list[Recorder] = []

    def fill(self) -> None:
        """Begin what waits, as far as there is room."""
        self._waiting = [each for each in self._waiting if each.at_work]
        while self._waiting and len(self.working) < self._most:
            recorder = self._waiting.pop(0)
            self.working.append(recorder)
            self._attempt(recorder, self._start)

    def go_on(self) -> None:
        """Take what has been answered, and ask what comes next."""
        for recorder in list(self.working):
            if recorder.at_work:
                self._attempt(recorder, self._look)
            if not recorder.at_work:
                self.working.remove(recorder)
                self._hand_over(recorder)

    def _attempt(self, recorder: Recorder, action: Callable[[Recorder, Child | None], None]) -> None:
        try:
            action(recorder, recorder.child)
        except ContenderFailed as failure:
            recorder.fail(failure)

    def _start(self, recorder: Recorder, child: Child | None) -> None:
        if child is not None:
            _send(recorder, child)
        else:
            recorder.child = self._launcher.started(recorder.outcome, purpose=recorder.purpose, beside=self._most - 1)

    def _look(self, recorder: Recorder, child: Child | None) -> None:
        deadlines, command = self._launcher.plan.deadlines, recorder.commands[0]
        if child is None:
            return
        if child not in self._greeted:
            if child.has_replied(deadlines["start"]):
                recorder.outcome.versions = child.greet(deadlines["start"])["versions"]
                self._greeted.add(child)
                _send(recorder, child)
        elif child.has_replied(deadlines[command.deadline]):
            command.keep(child.reply(command.name, deadlines[command.deadline]))
            del recorder.commands[0]
            if recorder.at_work:
                _send(recorder, child)

    def _hand_over(self, recorder: Recorder) -> None:
        """Give a child that has no more to do to the next recorder of its contender, or end it."""
        child, recorder.child = recorder.child, None
        if child is None:
            return
        usable = recorder.failure is None and recorder.outcome.status == "ok"
        same = (each for each in self._waiting if each.outcome is recorder.outcome)
        heir = next((each for each in same if not each.fresh and each.child is None), None)
        if usable and heir is not None:
            heir.child = child
            self._waiting.remove(heir)
            self._waiting.insert(0, heir)
        else:
            child.close()


def _send(recorder: Recorder, child: Child) -> None:
    child.send(recorder.commands[0].name, **recorder.commands[0].arguments)
