"""Processes that end together: one that is started with its whole family, how it ended, and what it does alone."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from compare.base.interface import shortened

EXIT_CODES = {"oom": errno.ENOMEM, "refused": errno.EINVAL}
"""The exit code of a process that ends with a contender's status other than `crash`."""

_PACKAGES = Path(__file__).resolve().parents[2]
_PARENT_POLL_SECONDS = 0.5
_GRACE_SECONDS = 2.0
_LOG_TAIL = 1 << 14


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of samestep's modules.

    A script in the current folder hides no module there, whatever its name (`compare.py`, `queue.py`), as it hides
    none from the command `samestep`. Where samestep itself lies in that folder, Python finds it by it.
    """
    alone = [] if Path.cwd() == _PACKAGES else ["-P"]
    return [sys.executable, *alone, "-m", module, *arguments]


class ProcessFamily:
    """A process in a process group of its own, so that its whole family ends with it.

    Args:
        arguments: the command that starts it.
        environment: variables added to this process's own.
        log: the file that its output goes to.
        descriptors: those that it inherits.

    Raises:
        OSError: when the machine cannot start another process.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, descriptors: Sequence[int] = ()
    ) -> None:
        self._log, self._kills_before = log, kernel_kills()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(os.environ) | dict(environment),
                pass_fds=descriptors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process's id, which is also its group's."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Tell whether the process itself has ended."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Wait until the process itself has ended."""
        self._process.wait()

    def end(self) -> None:
        """End the process and every one that it started, at once; safe to call twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold one that waits for a device
            self._process.wait(_GRACE_SECONDS)

    def death(self) -> tuple[str, str] | None:
        """Return how the process ended, as a contender's status and a reason; None where it does not end."""
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        status, reason = explain_exit_code(code, self._kills_before)
        return status, reason if code < 0 else f"{reason}; last output: {self._last_line()}"

    def _last_line(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LOG_TAIL))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return shortened(lines[-1], 300) if lines else "nothing"


def explain_exit_code(code: int, kills_before: int) -> tuple[str, str]:
    """Return what an exit code, negative for a signal, tells of a process's end: a contender's status and a reason.

    `kills_before` is what `kernel_kills` was when the process started.
    """
    if code == -signal.SIGKILL and kernel_kills() > kills_before:
        return "oom", "killed by the kernel because memory ran out"
    if code < 0:
        return "crash", f"killed by signal {-code} ({signal.Signals(-code).name})"
    if code == EXIT_CODES["oom"]:
        return "oom", "ended because memory ran out"
    if code == EXIT_CODES["refused"]:
        return "refused", "ended because it refused what it was asked"
    return "crash", f"ended with exit code {code}"


def end_with_parent(parent: int) -> None:
    """Kill this process group once its parent is gone, however it went, so that no process is left behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        end()

    threading.Thread(target=watch, daemon=True).start()


def be_killed_first() -> None:
    """Let the kernel, where memory runs out, kill this process before the one that started it (Linux only)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="utf-8")  # proc(5): half of all memory on top


def end() -> None:
    """Kill this process group."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def kernel_kills() -> int:
    """Return how often this machine's kernel has killed a process for memory, 0 where it does not say (Linux only)."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
