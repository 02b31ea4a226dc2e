"""Tell whether a child makes progress, so that a hang ends soon and a long compilation lives. Linux only.

Progress is processor time of the child's family, and new files in its caches. A thread that runs without a page fault
and without waiting makes none: it spins.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compare.machine import cpu

LOOK_SECONDS = 10.0
"""Seconds between two looks. A shorter command is never looked at, so no look falls into a timed block."""

STALL_SECONDS = 180.0
"""Seconds without progress after which a child hangs."""

_FOLDERS = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
_LEAST_SHARE = 0.02
_STATES = {"T": "it is stopped (SIGSTOP)", "t": "a debugger holds it", "D": "it waits for a disk or a device"}


@dataclass(frozen=True)
class _Thread:
    """Seconds that a thread has run, and how often it had to wait for memory or gave its core away."""

    seconds: float
    pauses: int


class ProgressWatch:
    """Watches the family of one child, from one command to the next.

    Args:
        pid: of the child.
        variables: of the child.
    """

    def __init__(self, pid: int, variables: Mapping[str, str]) -> None:
        self._pid, self._variables = pid, variables
        self._folders = [Path(variables[name]) for name in _FOLDERS if name in variables]
        self.restart()

    def restart(self) -> None:
        """Begin with a new command."""
        self._looked = self._moved = time.monotonic()
        self._threads: Mapping[tuple[int, int], _Thread] = {}
        self._files: tuple[int, int] | None = None
        self._stall: str | None = None

    def find_stall(self) -> str | None:
        """Return in words why the child has made no progress for `STALL_SECONDS`, or None if it has."""
        now = time.monotonic()
        if self._stall is None and now >= self._looked + LOOK_SECONDS:
            elapsed, self._looked = now - self._looked, now
            if self._has_moved(elapsed):
                self._moved = now
            elif now >= self._moved + STALL_SECONDS:
                self._stall = f"made no progress for {now - self._moved:.0f} s; likely cause: {self._guess_cause()}"
        return self._stall

    def _has_moved(self, elapsed: float) -> bool:
        before, self._threads = self._threads, _read_threads(self._pid)
        if not before or not self._threads:
            return True  # the first look of a command, or no Linux
        ran = 0.0
        for key, after in self._threads.items():
            earlier = before.get(key, _Thread(0.0, 0))
            seconds = after.seconds - earlier.seconds
            ran += 0.0 if after.pauses == earlier.pauses else seconds  # without a pause it spins
        if ran >= _LEAST_SHARE * elapsed:
            return True
        files, self._files = self._files, _read_files(self._folders)
        return files is not None and files != self._files

    def _guess_cause(self) -> str:
        limit = self._variables.get("OMP_THREAD_LIMIT") or os.environ.get("OMP_THREAD_LIMIT")
        if limit:
            return f"OMP_THREAD_LIMIT={limit}, with which OpenMP waits for threads that it may not start"
        with suppress(OSError, IndexError):
            state = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state in _STATES:
                return _STATES[state]
        return "threads or processes that wait for each other, or a wait for a lock, a network or another program"


def _read_threads(pid: int) -> dict[tuple[int, int], _Thread]:
    """Return all threads of a process and of those that it has started, and as thread 0 what its dead children ran."""
    threads = dict[tuple[int, int], _Thread]()
    for member in cpu.list_family(pid):
        for task in Path(f"/proc/{member}/task").glob("*"):
            with suppress(OSError, ValueError, IndexError):  # it has ended
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                waits = [line for line in (task / "status").read_text().splitlines() if line.startswith("voluntary")]
                ran = int((task / "schedstat").read_text().split()[0]) / 1e9
                # proc(5), from its field 3 on: faults are its fields 10 and 12, and dead children's times 16 and 17.
                pauses = int(fields[7]) + int(fields[9]) + int(waits[0].split()[1])
                threads[member, int(task.name)] = _Thread(ran, pauses)
                ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
                threads[member, 0] = _Thread(ended, int(ended * 1e6))
    return threads


def _read_files(folders: list[Path]) -> tuple[int, int]:
    """Return the number of files below folders, and the time of the newest."""
    count, newest = 0, 0
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(OSError):
                count, newest = count + 1, max(newest, path.lstat().st_mtime_ns)
    return count, newest
