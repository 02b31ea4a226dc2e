"""Run jobs in children side by side while nothing is timed. Each child takes job after job of its contender."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compare.base import tensors
from compare.base.commands import Command
from compare.base.interface import ContenderFailed
from compare.execution.child import Child
from compare.execution.launcher import BESIDE_OTHERS, Launcher
from compare.execution.ready_children import have_cores
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import cpu, memory

_POLL_SECONDS = 0.02
_MEMORY_SHARE = 0.9
"""The share of a GPU's memory that jobs may take by estimate. The rest is for what the estimates miss."""
_MOST_RETRIES = 3
"""Jobs of a contender that may wait to be repeated alone. The next failure counts as the contender's own."""
_WHOLE_DISK = sys.maxsize
"""The disk space of a job that once had too little. It begins alone, and no job that writes runs beside it."""


@dataclass(frozen=True)
class Call:
    """A command to a child, and a function that takes its reply."""

    command: Command[Any]
    keep: Callable[[Any], None] = lambda _: None


@dataclass
class Job:
    """Calls that one child makes one after the other.

    A failure marks the contender at once and ends all its work. If the job `spares` the contender, a failure ends only
    such jobs, and marks the contender when all other jobs are done. A job that may not begin yet holds up the jobs
    behind it. So does a job that writes more than the disk has space for.

    Attributes:
        purpose: the start of the reason when the job fails.
        calls: the commands, in order.
        spares: whether other jobs of the contender go on after a failure.
        may_begin: tells whether the job may begin.
        disk_space: returns the bytes that the job writes into the launcher's scratch folder.
        alone: whether no other job may run at the same time.
        repeated: whether it had failed beside others. Then no other process is there.
        memory: the bytes of a GPU that the job takes; it waits until they are free beside other jobs.
        opening: the calls that come first in a child that begins with this job.
    """

    purpose: str
    calls: list[Call]
    spares: bool = False
    may_begin: Callable[[], bool] = lambda: True
    disk_space: Callable[[], int] = lambda: 0
    alone: bool = False
    repeated: bool = False
    memory: int = 0
    opening: Sequence[Call] = ()


@dataclass
class Queue:
    """A contender's jobs. Children take them from the front.

    Attributes:
        run: the state of the contender.
        jobs: the jobs that no child has taken.
        most: the largest number of children at a time, or None.
        purpose: decides where the children find compiled programs (`compare.execution.launcher.Launcher.start`).
        divides_cores: whether each child has a share of the cores.
        spared: the first failure of a job that spares the contender.
    """

    run: ContenderRun
    jobs: list[Job]
    most: int | None = None
    purpose: str = "certificate"
    divides_cores: bool = True
    spared: tuple[str, str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a job to take, now or later, for a contender that has not failed."""
        return bool(self.jobs) and self.run.status == "ok"


def has_spare_cores(launcher: Launcher, state: RunState) -> bool:
    """Tell whether there are cores for several children of every contender, with a process for each device."""
    return cpu.count_usable_cores() >= 2 * len(state.alive) * launcher.plan.devices


def run_calls(child: Child, calls: Sequence[Call]) -> None:
    """Make calls to one child while no other child works.

    Raises:
        ContenderFailed: as `Child.reply`.
    """
    for call in calls:
        call.keep(child.call(call.command))


def run_jobs(
    launcher: Launcher,
    queues: Sequence[Queue],
    progress: Callable[[int, int], None],
    is_judging: Callable[[], bool] = lambda: False,
) -> None:
    """Run all jobs in children side by side. `progress(done, total)` counts jobs. It comes with every change of
    `launcher.working`, too. While something `is_judging`, that may free the disk and add jobs.

    A job that must be alone comes first if no other has begun, and else waits for a pause. Meanwhile the children of
    other jobs import, and wait. On a CPU, or with too few cores, a job that must be alone also waits for imports.
    Children that are wanted later start when no such job is left. There is one child more than cores, so that no core
    waits while a child waits for its next command. When a contender has no more jobs, the next child works for another.

    A job may fail because of its neighbours, and is then repeated:
    - Memory ran out: the job is repeated beside at most half as many children, in the end alone.
    - The disk is full: the job is repeated alone, when nothing `is_judging` any more.
    - A job crashes or is refused beside others on a GPU: it is repeated alone, in a new child, after its contender's
      other jobs. The contender's reason says so. If memory is short, cuDNN reports an internal error, and JAX no GPU.
    """
    workers = list[_Worker]()
    gpu = memory.read_device_bytes(launcher.plan.device)
    most_memory = math.inf if gpu is None else _MEMORY_SHARE * gpu

    def is_ready(queue: Queue) -> bool:
        if not queue.is_open or not _fits_beside(queue.jobs[0], workers, most_memory):
            return False
        return queue.jobs[0].may_begin() and _has_disk_space(launcher, queue.jobs[0], workers, is_judging)

    def may_work(worker: _Worker) -> bool:
        others = [other for other in workers if other is not worker and other.is_working]
        if worker.job.alone:
            if any(other.is_active for other in others):
                return False
            imports = any(other.is_importing for other in others) or launcher.ready.are_importing()
            return imports_beside or not imports
        active = [other for other in others if other.is_active]
        if active:
            return not any(other.job.alone for other in active)
        return not any(other.job.alone for other in others)

    def is_alone(worker: _Worker) -> bool:
        return all(other.job.alone and other.is_waiting for other in workers if other is not worker)

    def count_workers() -> int:
        return sum(not (worker.job.alone and worker.is_waiting) for worker in workers)

    total, reported = sum(len(queue.jobs) for queue in queues), None
    most = sum(len(queue.jobs) if queue.most is None else min(len(queue.jobs), queue.most) for queue in queues)
    contenders = len({queue.run.contender.name for queue in queues})
    children = min(most, max(contenders, cpu.count_usable_cores() + 1))
    imports_beside = BESIDE_OTHERS[launcher.plan.device] and have_cores(children)
    try:
        while True:
            going = [worker for worker in workers if worker.advance(alone=is_alone(worker))]
            if any(worker.is_crowded for worker in workers):
                children = max(1, len(workers) // 2)
            workers[:] = going
            while count_workers() < children and (queue := _choose_queue(queues, workers, is_ready)) is not None:
                beside = children - 1 if queue.divides_cores else 0
                workers.append(_Worker(launcher, queue, is_ready, may_work, beside))
            if not any(worker.job.alone for worker in workers):
                launcher.ready.go_on()
            total -= sum(len(queue.jobs) for queue in queues)
            judging = is_judging()
            total += (waiting := sum(len(queue.jobs) for queue in queues))
            done = total - len(workers) - waiting
            launcher.working = sorted({worker.queue.run.contender.name for worker in workers if worker.is_working})
            if reported != (reported := (done, *launcher.working)):
                progress(done, total)
            if not workers and not judging and not any(queue.is_open for queue in queues):
                break
            time.sleep(_POLL_SECONDS)
    finally:
        launcher.working = ()
        for worker in workers:
            worker.close()
    for queue in queues:
        if queue.spared is not None and queue.run.status == "ok":
            queue.run.status, queue.run.reason = queue.spared


def _fits_beside(job: Job, workers: "Sequence[_Worker]", most_memory: float) -> bool:
    """Tell whether a job may begin beside the jobs that run."""
    working = [worker for worker in workers if worker.is_working]
    if job.alone:
        return not working or not (job.repeated or any(worker.is_active or not worker.job.alone for worker in working))
    if any(worker.job.repeated or (worker.job.alone and worker.is_active) for worker in working):
        return False
    taken = sum(worker.job.memory for worker in working)
    return not (taken and job.memory) or taken + job.memory <= most_memory


def _has_disk_space(launcher: Launcher, job: Job, workers: "Sequence[_Worker]", is_judging: Callable[[], bool]) -> bool:
    """Tell whether the disk has space for a job beside those that run. Alone it may try.

    A tenth of the space is for compilers, which write there too. On a full disk, XLA once failed to load a program.
    """
    needed, taken = job.disk_space(), sum(worker.disk_space for worker in workers)
    if not needed or not (workers or is_judging()):
        return True
    return 10 * (taken + needed) <= 9 * tensors.find_room(launcher.scratch)


def _choose_queue(
    queues: Sequence[Queue], workers: "Sequence[_Worker]", is_ready: Callable[[Queue], bool]
) -> Queue | None:
    """Return the ready queue with the fewest children and then the most jobs.

    A job that must be alone comes first while nothing runs, because later it would have to wait.
    """
    counts = [sum(worker.queue is queue for worker in workers) for queue in queues]
    ready = [
        (not queue.jobs[0].alone, count, -len(queue.jobs), index)
        for index, (queue, count) in enumerate(zip(queues, counts, strict=True))
        if (queue.most is None or count < queue.most) and is_ready(queue)
    ]
    return queues[min(ready)[-1]] if ready else None


class _Worker:
    """A child of a queue, and the calls that are left of its job."""

    def __init__(
        self,
        launcher: Launcher,
        queue: Queue,
        is_ready: Callable[[Queue], bool],
        may_work: "Callable[[_Worker], bool]",
        beside: int,
    ) -> None:
        self.queue, self._is_ready, self._may_work = queue, is_ready, may_work
        self._shares_memory = launcher.plan.device == "cuda"
        self._child: Child | None = None
        self._has_greeted = self._has_begun = False
        self.is_crowded = False
        """Whether memory ran out beside other jobs. The job is then back in its queue."""
        self._take_job()
        self._calls[:0] = self.job.opening
        try:
            spec = getattr(self._calls[0].command, "spec", None)
            devices = None if spec is None else spec.devices
            self._child = launcher.start(queue.run, purpose=queue.purpose, beside=beside, devices=devices)
        except ContenderFailed as failure:
            self._fail(failure)

    @property
    def is_working(self) -> bool:
        """Whether the job is not done."""
        return bool(self._calls)

    @property
    def is_active(self) -> bool:
        """Whether the job has begun and is not done."""
        return self.is_working and self._has_begun

    @property
    def is_importing(self) -> bool:
        """Whether the child imports, and could not begin its job."""
        return self.is_working and not self._has_greeted

    @property
    def is_waiting(self) -> bool:
        """Whether the child could begin its job, and may not."""
        return self.is_working and self._has_greeted and not self._has_begun

    @property
    def disk_space(self) -> int:
        """The bytes that the job takes on the disk until it is done."""
        return self.job.disk_space() if self.is_working else 0

    def advance(self, *, alone: bool) -> bool:
        """Take the child's reply and send its next command. If there is none, end the child and return False."""
        if self._calls and self.queue.run.status == "ok" and self._child is not None:
            try:
                self._look(self._child)
            except ContenderFailed as failure:
                if failure.disk_full and self.disk_space != _WHOLE_DISK:
                    self._return_job(replace(self.job, disk_space=lambda: _WHOLE_DISK))
                elif failure.status == "oom" and not alone:
                    self.is_crowded = True
                    self._return_job(self.job)
                elif self._may_be_caused_by_others(failure) and not alone:
                    self._repeat_alone(failure)
                else:
                    self._fail(failure)
        if self._calls and self.queue.run.status == "ok":
            return True
        self.close()
        return False

    def close(self) -> None:
        """End the child, if it was started."""
        if self._child is not None:
            self._child.close()

    def _look(self, child: Child) -> None:
        if not self._has_greeted:
            if not child.has_greeted():
                return
            self.queue.run.versions = child.greet().versions
            self._has_greeted = True
        if not self._has_begun:
            if self._may_work(self):
                self._has_begun = True
                child.send(self._calls[0].command)
            return
        call = self._calls[0]
        if child.has_replied(call.command):
            call.keep(child.reply(call.command))
            del self._calls[0]
            if self._calls:
                child.send(self._calls[0].command)
            elif self._may_go_on():
                self._take_job()
                self._look(child)

    def _may_go_on(self) -> bool:
        """Tell whether this child takes the next job. The only child of a queue waits until that may be alone."""
        queue = self.queue
        if not queue.is_open:
            return False
        job = queue.jobs[0]
        if job.alone:
            return queue.most == 1 and not job.repeated and job.may_begin()
        return self._is_ready(queue)

    def _may_be_caused_by_others(self, failure: ContenderFailed) -> bool:
        """Tell whether a job may have failed because others took a GPU's memory."""
        retries = sum(job.repeated for job in self.queue.jobs)
        possible = failure.status in ("crash", "refused") and not failure.disk_full
        return self._shares_memory and possible and retries < _MOST_RETRIES

    def _take_job(self) -> None:
        self.job, self._has_begun = self.queue.jobs.pop(0), False
        self._calls = list(self.job.calls)

    def _return_job(self, job: Job) -> None:
        self._calls = []
        self.queue.jobs.insert(0, job)

    def _repeat_alone(self, failure: ContenderFailed) -> None:
        self._calls = []
        self.queue.jobs.append(replace(self.job, alone=True, repeated=True))
        why = f"{failure.status}, {self.job.purpose}: {failure.reason}"
        self.queue.run.reason = f"repeated alone what had failed beside others ({why})"

    def _fail(self, failure: ContenderFailed) -> None:
        status, reason = failure.status, f"{self.job.purpose}: {failure.reason}"
        self._calls = []
        if self.job.spares:
            self.queue.spared = self.queue.spared or (status, reason)
            self.queue.jobs[:] = [job for job in self.queue.jobs if not job.spares]
        elif self.queue.run.status == "ok":
            self.queue.run.status, self.queue.run.reason = status, reason
