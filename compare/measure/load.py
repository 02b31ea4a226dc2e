"""Other programs on the CPUs that a run may use: what was busy there beyond the run itself."""

import os
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass

import psutil

LEAST_SECONDS = 0.05
"""CPU time that counting in ticks of 10 ms cannot tell from none."""


@dataclass(frozen=True)
class Reading:
    """At one time, in seconds: `busy` CPU time of all programs (taken by a hypervisor included), `own` of this run."""

    time: float
    busy: float
    own: float


def read(children: Collection[int]) -> Reading:
    """Read CPU times of the CPUs that this process may use, and those of this process and `children`.

    What a child has started counts with it: the ranks of data-parallel training. A process that has ended does not.
    """
    cpus = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if sys.platform == "linux" else range(len(cpus))
    idle = ("idle", "iowait", "guest", "guest_nice")  # guest time is also in user time
    busy = sum(
        seconds
        for cpu in allowed
        if cpu < len(cpus)
        for name, seconds in cpus[cpu]._asdict().items()
        if name not in idle
    )
    own = _seconds(os.getpid()) + sum(_seconds(pid) for child in children for pid in (child, *_descendants(child)))
    return Reading(time.monotonic(), busy, own)


def foreign_cores(before: Reading, after: Reading) -> float:
    """Return how many cores others kept busy between two readings, 0 where the counters cannot tell it from none."""
    seconds = (after.busy - before.busy) - (after.own - before.own)
    elapsed = after.time - before.time
    return seconds / elapsed if elapsed > 0 and seconds > LEAST_SECONDS else 0.0


def _descendants(pid: int) -> list[int]:
    try:
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    # Of those that ended meanwhile, too: what they took would be missing, and would look like other programs' load.
    return times.user + times.system + times.children_user + times.children_system
