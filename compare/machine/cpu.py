"""The cores that this process may use, and how busy other programs keep them during a run."""

import ctypes
import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

LEAST_SECONDS = 0.05
"""CPU time that ticks of 10 ms cannot tell from none."""

_STAT = Path("/proc/stat")
_LIBC = ctypes.CDLL(None)


def count_usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_physical_cores() -> int:
    """Return how many physical cores this process may use. A core with two hardware threads counts once. Linux only.

    Return the number of usable cores if the system does not tell.
    """
    if not hasattr(os, "sched_getaffinity"):
        return count_usable_cores()
    return len({_find_siblings(number) for number in os.sched_getaffinity(0)})


def _find_siblings(number: int) -> str:
    """Return the hardware threads that share a core with one, as the system writes them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


@dataclass(frozen=True)
class Reading:
    """CPU seconds at one time: `busy` of all programs including a hypervisor, and `own` of this run."""

    time: float
    busy: float
    own: float


def read(children: Collection[int]) -> Reading:
    """Read the times of the CPUs that this process may use, and of this process and `children`.

    Processes that a child has started count with it, for example the ranks of data-parallel training. Processes that
    have ended count if their parent waited for them.
    """
    busy = _busy()
    own = _seconds(os.getpid()) + sum(_seconds(pid) for child in children for pid in list_family(child))
    return Reading(time.monotonic(), busy, own)


def count_foreign_cores(before: Reading, after: Reading) -> float:
    """Return how many cores others kept busy between two readings, or 0 if the counters cannot tell."""
    seconds = (after.busy - before.busy) - (after.own - before.own)
    elapsed = after.time - before.time
    return seconds / elapsed if elapsed > 0 and seconds > LEAST_SECONDS else 0.0


def read_programs() -> dict[int, tuple[str, float]]:
    """Return the name and the CPU seconds of every process that this machine lists, by its id."""
    programs = dict[int, tuple[str, float]]()
    for process in psutil.process_iter(["name", "cpu_times"]):
        times, name = process.info["cpu_times"], process.info["name"]
        if times is not None and name:
            programs[process.pid] = name, times.user + times.system
    return programs


def name_busiest(
    before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]], own: Collection[int]
) -> str | None:
    """Return the name and the id of the process that worked most between two readings, without this run's `own`.

    Return None if none worked noticeably, as on a machine that hides other users' processes.
    """
    worked = {
        pid: seconds - (before[pid][1] if pid in before else 0.0)
        for pid, (_, seconds) in after.items()
        if pid not in own
    }
    busiest = max(worked, key=lambda pid: worked[pid], default=None)
    if busiest is None or worked[busiest] <= LEAST_SECONDS:
        return None
    return f"{after[busiest][0]} (process {busiest})"


def list_family(child: int) -> list[int]:
    """Return the process ids of a child and of all processes that it has started."""
    return [child, *_descendants(child)]


def sum_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds that these processes have taken, on Linux to the microsecond (clock_getcpuclockid(3)).

    A process that has ended counts 0.
    """
    return sum(map(_own_seconds if sys.platform == "linux" else _seconds, pids))


def _own_seconds(pid: int) -> float:
    clock = ctypes.c_int()
    if _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def _busy() -> float:
    if sys.platform != "linux":
        return sum(seconds for name, seconds in psutil.cpu_times()._asdict().items() if name != "idle")
    listed, allowed = _listed(), os.sched_getaffinity(0)
    # A container's /proc/stat may number its CPUs from 0 (lxcfs), while the scheduler uses other numbers.
    return sum(listed[cpu] for cpu in (allowed if allowed <= listed.keys() else listed))


def _listed() -> dict[int, float]:
    """Return the busy seconds of each CPU by its number. A CPU that is offline has no line (proc(5))."""
    found: dict[int, float] = {}
    for name, *ticks in map(str.split, _STAT.read_text(encoding="utf-8").splitlines()):
        if name.startswith("cpu") and name != "cpu":
            user_nice_system, interrupts_stolen = ticks[:3], ticks[5:8]  # guest time is also in user time
            busy = sum(map(int, user_nice_system + interrupts_stolen))
            found[int(name.removeprefix("cpu"))] = busy / os.sysconf("SC_CLK_TCK")
    return found


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
    # Children that have ended count too. Without them, their time would look like other programs' load.
    return times.user + times.system + times.children_user + times.children_system
