"""Children that carry out jobs side by side, where nothing is timed: each takes its contender's next when done."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compare.base import tensors
from compare.base.interface import ContenderFailed
from compare.execution.child import Child
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import cpu, memory

_POLL_SECONDS = 0.02
_MOST_PART = 0.9
"""The part of a GPU's memory for jobs by what is known, or thought, of each: the rest is for what nobody foresees."""
_MOST_AGAIN = 3
"""Jobs of a contender that may wait to be done again alone: the next that fails is its own failure."""
_ALL = sys.maxsize
"""The room of a job that has had too little: it begins alone, and nothing that takes any beside it."""


@dataclass
class Command:
    """One command to a child: its name and arguments, its deadline by name, and what becomes of the answer."""

    name: str
    arguments: dict[str, Any]
    deadline: str
    keep: Callable[[Any], None]


def open_command(spec: dict[str, Any], keep: Callable[[Any], None] = lambda _: None) -> Command:
    """Return the command to open a session of `spec`, for the commands after it."""
    return Command("open", {"spec": spec}, "open", keep)


@dataclass
class Job:
    """Commands that one child carries out one after the other.

    `purpose` is said where one fails. That marks the contender at once and ends all its work, unless the job `spares`
    it: then only such jobs of it end, and it is marked when all others are done. A job that may not begin yet holds up
    those behind it, and so does one that writes more into the launcher's scratch folder, `room` in bytes, than the disk
    has space for. One that is to be `alone` begins when no other is at work, and none begins beside it. One that takes
    `memory` of a GPU, in bytes, begins while there is so much beside what others take.
    """

    purpose: str
    commands: list[Command]
    spares: bool = False
    may_begin: Callable[[], bool] = lambda: True
    room: Callable[[], int] = lambda: 0
    alone: bool = False
    memory: int = 0


@dataclass
class Queue:
    """A contender's jobs, which children take from the front, `most` of them at a time (None: any number).

    The children are started for `purpose`, which decides where they find compiled programs
    (`compare.execution.launcher.Launcher.start`).
    """

    run: ContenderRun
    jobs: list[Job]
    most: int | None = None
    purpose: str = "certificate"
    spared: tuple[str, str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a job to take, now or later, for a contender that has not failed."""
        return bool(self.jobs) and self.run.status == "ok"


def may_be_shared(launcher: Launcher, state: RunState) -> bool:
    """Whether there are cores for several children of every contender, with a process on each device."""
    return cpu.count_usable_cores() >= 2 * len(state.alive) * launcher.plan.devices


def run_commands(child: Child, commands: Sequence[Command], deadlines: Mapping[str, float]) -> None:
    """Have one child carry out commands, while no other is at work.

    Raises:
        ContenderFailed: as `Child.reply` does.
    """
    for command in commands:
        command.keep(child.call(command.name, deadlines[command.deadline], **command.arguments))


def run_jobs(
    launcher: Launcher,
    queues: Sequence[Queue],
    progress: Callable[[int, int], None],
    frees: Callable[[], bool] = lambda: False,
    *,
    divides_cores: bool = True,
) -> None:
    """Have children carry out all jobs at the same time; `progress(done, total)` counts jobs.

    A child has its part of the cores, unless none is to be told how many there are (`divides_cores`).
    There is one child more than there are cores, so that no core waits while one of them waits for its next command.
    Where a contender has no more jobs, the next child is another's. A job for which memory runs out while others are at
    work is done again when at most half as many are, in the end alone, one for which the disk runs out when it is
    alone, and nothing `frees` space there: only then has its contender failed. On a GPU, whose memory they share, one
    that crashes or is refused beside others is done again alone, too, in a child of its own, behind its contender's
    other jobs, and the contender's reason says so: cuDNN calls memory that has run out an internal error, and JAX then
    sees no GPU.
    """
    workers = list[_Worker]()
    gpu = memory.device_bytes(launcher.plan.device)
    most_memory = math.inf if gpu is None else _MOST_PART * gpu

    def waits(queue: Queue) -> bool:
        if not queue.is_open or not _may_be_beside(queue.jobs[0], workers, most_memory):
            return False
        return queue.jobs[0].may_begin() and _has_room(launcher, queue.jobs[0], workers, frees)

    total, told = sum(len(queue.jobs) for queue in queues), -1
    most = sum(len(queue.jobs) if queue.most is None else min(len(queue.jobs), queue.most) for queue in queues)
    children = min(most, max(len(queues), cpu.count_usable_cores() + 1))
    try:
        while True:
            going = [worker for worker in workers if worker.goes_on(alone=len(workers) == 1)]
            if any(worker.is_crowded for worker in workers):
                children = max(1, len(workers) // 2)
            workers[:] = going
            while len(workers) < children and (queue := _neediest(queues, workers, waits)) is not None:
                workers.append(_Worker(launcher, queue, waits, beside=children - 1 if divides_cores else 0))
            if told != (told := total - len(workers) - sum(len(queue.jobs) for queue in queues)):
                progress(told, total)
            if not workers and not any(queue.is_open for queue in queues):
                break
            time.sleep(_POLL_SECONDS)
    finally:
        for worker in workers:
            worker.close()
    for queue in queues:
        if queue.spared is not None and queue.run.status == "ok":
            queue.run.status, queue.run.reason = queue.spared


def _may_be_beside(job: Job, workers: "Sequence[_Worker]", most_memory: float) -> bool:
    """Whether a job may begin beside what others are at."""
    at_work = [worker.job for worker in workers if worker.is_at_work]
    if job.alone or any(other.alone for other in at_work):
        return not at_work
    taken = sum(other.memory for other in at_work)
    return not (taken and job.memory) or taken + job.memory <= most_memory


def _has_room(launcher: Launcher, job: Job, workers: "Sequence[_Worker]", frees: Callable[[], bool]) -> bool:
    """Whether the disk takes what a job writes beside what others have begun; alone it may try.

    A tenth is left to compilers, which write there, too: while a disk was full, a program of XLA did not load.
    """
    room, begun = job.room(), sum(worker.room for worker in workers)
    if not room or not (workers or frees()):
        return True
    return 10 * (begun + room) <= 9 * tensors.room(launcher.scratch)


def _neediest(queues: Sequence[Queue], workers: "Sequence[_Worker]", waits: Callable[[Queue], bool]) -> Queue | None:
    """Return the queue that the next child is to work on: that with the fewest children, then with the most jobs.

    What is to be alone comes first while nothing is at work: later it would have to wait for that.
    """
    counts = [sum(worker.queue is queue for worker in workers) for queue in queues]
    waiting = [
        (not queue.jobs[0].alone, count, -len(queue.jobs), index)
        for index, (queue, count) in enumerate(zip(queues, counts, strict=True))
        if (queue.most is None or count < queue.most) and waits(queue)
    ]
    return queues[min(waiting)[-1]] if waiting else None


class _Worker:
    """A child of a queue, and what is left of the job that it is at."""

    def __init__(self, launcher: Launcher, queue: Queue, waits: Callable[[Queue], bool], beside: int) -> None:
        self.queue, self._waits, self._deadlines = queue, waits, launcher.plan.deadlines
        self._shares_memory = launcher.plan.device == "cuda"
        self._child: Child | None = None
        self._greeted = False
        self.is_crowded = False
        """Whether memory ran out while others were at work; the job is then back in its queue."""
        self._take()
        try:
            devices = self._commands[0].arguments.get("spec", {}).get("devices")
            self._child = launcher.start(queue.run, purpose=queue.purpose, beside=beside, devices=devices)
        except ContenderFailed as failure:
            self._fail(failure)

    @property
    def is_at_work(self) -> bool:
        """Whether the job is not done."""
        return bool(self._commands)

    @property
    def room(self) -> int:
        """The bytes that the job takes on the disk in all, written or not, until it is done."""
        return self.job.room() if self.is_at_work else 0

    def goes_on(self, *, alone: bool) -> bool:
        """Take what the child has answered and ask what comes next; end the child where there is nothing."""
        if self._commands and self.queue.run.status == "ok" and self._child is not None:
            try:
                self._look(self._child)
            except ContenderFailed as failure:
                if failure.disk_full and self.room != _ALL:
                    self._give_back(replace(self.job, room=lambda: _ALL))
                elif failure.status == "oom" and not alone:
                    self.is_crowded = True
                    self._give_back(self.job)
                elif self._may_be_of_others(failure) and not alone:
                    self._put_behind(failure)
                else:
                    self._fail(failure)
        if self._commands and self.queue.run.status == "ok":
            return True
        self.close()
        return False

    def close(self) -> None:
        """End the child, if it was started."""
        if self._child is not None:
            self._child.close()

    def _look(self, child: Child) -> None:
        if not self._greeted:
            if child.has_replied(self._deadlines["start"]):
                self.queue.run.versions = child.greet(self._deadlines["start"])["versions"]
                self._greeted = True
                self._send(child)
            return
        command = self._commands[0]
        if child.has_replied(self._deadlines[command.deadline]):
            command.keep(child.reply(command.name, self._deadlines[command.deadline]))
            del self._commands[0]
            if not self._commands and self._waits(self.queue) and not self.queue.jobs[0].alone:
                self._take()
            if self._commands:
                self._send(child)

    def _may_be_of_others(self, failure: ContenderFailed) -> bool:
        """Whether it may have failed so for what others have taken of a GPU's memory."""
        again = sum(job.alone for job in self.queue.jobs)
        known = failure.status in ("crash", "refused") and not failure.disk_full
        return self._shares_memory and known and again < _MOST_AGAIN

    def _take(self) -> None:
        self.job = self.queue.jobs.pop(0)
        self._commands = list(self.job.commands)

    def _give_back(self, job: Job) -> None:
        self._commands = []
        self.queue.jobs.insert(0, job)

    def _put_behind(self, failure: ContenderFailed) -> None:
        self._commands = []
        self.queue.jobs.append(replace(self.job, alone=True))
        why = f"{failure.status}, {self.job.purpose}: {failure.reason}"
        self.queue.run.reason = f"done again alone what had failed beside others ({why})"

    def _send(self, child: Child) -> None:
        child.send(self._commands[0].name, **self._commands[0].arguments)

    def _fail(self, failure: ContenderFailed) -> None:
        status, reason = failure.status, f"{self.job.purpose}: {failure.reason}"
        self._commands = []
        if self.job.spares:
            self.queue.spared = self.queue.spared or (status, reason)
            self.queue.jobs[:] = [job for job in self.queue.jobs if not job.spares]
        elif self.queue.run.status == "ok":
            self.queue.run.status, self.queue.run.reason = status, reason
