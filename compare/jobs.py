"""Children that carry out jobs side by side, where nothing is timed: each takes its contender's next when done."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from compare import environment
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
class Job:
    """Commands that one child carries out one after the other, and what they are for, said where one fails."""

    purpose: str
    commands: list[Command]


@dataclass
class Queue:
    """A contender's jobs, which so many children take from the front."""

    outcome: Outcome
    jobs: list[Job]
    children: int = 1


def share(parties: int) -> int:
    """Return how many of the cores each of so many parties has, at least one."""
    return max(1, environment.cores() // max(1, parties))


def carry_out(launcher: Launcher, queues: Sequence[Queue], progress: Callable[[int, int], None]) -> None:
    """Have each queue's children carry out its jobs, all at the same time; `progress(done, total)` counts jobs.

    A failure marks its contender's outcome and ends its children's work.
    """
    total, told = sum(len(queue.jobs) for queue in queues), -1
    workers = [_Worker(queue) for queue in queues for _ in range(min(queue.children, len(queue.jobs)))]

    def each(action: Callable[[_Worker], object]) -> None:
        for worker in workers:
            if worker.at_work:
                attempt(worker.queue.outcome, worker.job.purpose, partial(action, worker))

    try:
        each(lambda worker: worker.start(launcher, beside=len(workers) - 1))
        each(lambda worker: worker.greet(launcher.plan.deadlines))
        while working := sum(worker.at_work for worker in workers):
            if told != (told := total - working - sum(len(queue.jobs) for queue in queues)):
                progress(told, total)
            time.sleep(_POLL_SECONDS)
            each(lambda worker: worker.go_on(launcher.plan.deadlines))
    finally:
        for worker in workers:
            worker.close()


class _Worker:
    """A child of a queue, and what is left of the job that it is at."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._started: Child | None = None
        self._take()

    @property
    def _child(self) -> Child:
        assert self._started is not None  # nothing is asked of a contender whose child could not be started
        return self._started

    @property
    def at_work(self) -> bool:
        """Whether a command is to be sent or answered, for a contender that has not failed."""
        return bool(self._commands) and self.queue.outcome.status == "ok"

    def start(self, launcher: Launcher, beside: int) -> None:
        """Start the child, which shares the cores with so many others."""
        self._started = launcher.started(self.queue.outcome, purpose="certificate", beside=beside)

    def greet(self, deadlines: Mapping[str, float]) -> None:
        """Wait until the child has come up, and send its first command."""
        self.queue.outcome.versions = self._child.greet(deadlines["start"])["versions"]
        self._send()

    def go_on(self, deadlines: Mapping[str, float]) -> None:
        """Send the next command if the last has been answered."""
        command = self._commands[0]
        if self._child.has_replied(deadlines[command.deadline]):
            command.keep(self._child.reply(command.name, deadlines[command.deadline]))
            del self._commands[0]
            if not self._commands:
                self._take()
            if self.at_work:
                self._send()

    def close(self) -> None:
        """End the child, if it was started."""
        if self._started is not None:
            self._started.close()

    def _take(self) -> None:
        if self.queue.jobs:
            self.job = self.queue.jobs.pop(0)
            self._commands = list(self.job.commands)

    def _send(self) -> None:
        self._child.send(self._commands[0].name, **self._commands[0].arguments)
