"""Children that carry out lists of commands side by side, where nothing is timed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from compare.child import Child
from compare.launcher import Launcher, Outcome, attempt

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
    """A child of a contender, and what it is still to be asked."""

    outcome: Outcome
    commands: list[Command]
    child: Child | None = None

    @property
    def at_work(self) -> bool:
        """Whether there is more to ask, and a contender to ask it of."""
        return bool(self.commands) and self.outcome.status == "ok"


def side_by_side(launcher: Launcher, recorders: Sequence[Recorder], purpose: str) -> None:
    """Start a child for each recorder and have all carry out their commands at the same time, each at its own pace.

    A failure marks its contender's outcome and ends its children's work.
    """
    deadlines = launcher.plan.deadlines

    def start(recorder: Recorder) -> None:
        recorder.child = launcher.started(recorder.outcome, purpose=purpose, beside=len(recorders) - 1)

    def greet(recorder: Recorder, child: Child) -> None:
        recorder.outcome.versions = child.greet(deadlines["start"])["versions"]

    def send(recorder: Recorder, child: Child) -> None:
        child.send(recorder.commands[0].name, **recorder.commands[0].arguments)

    def go_on(recorder: Recorder, child: Child) -> None:
        command = recorder.commands[0]
        if child.has_replied(deadlines[command.deadline]):
            command.keep(child.reply(command.name, deadlines[command.deadline]))
            del recorder.commands[0]
            if recorder.at_work:
                send(recorder, child)

    def each(action: Callable[[Recorder, Child], object]) -> None:
        for recorder in recorders:
            if recorder.at_work and recorder.child is not None:
                attempt(recorder.outcome, purpose, partial(action, recorder, recorder.child))

    try:
        for recorder in recorders:
            if recorder.at_work:
                attempt(recorder.outcome, purpose, partial(start, recorder))
        each(greet)
        each(send)
        while any(recorder.at_work for recorder in recorders):
            time.sleep(_POLL_SECONDS)
            each(go_on)
    finally:
        for recorder in recorders:
            if recorder.child is not None:
                recorder.child.close()
