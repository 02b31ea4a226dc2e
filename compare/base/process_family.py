"""Start a process so that it ends together with every process that it starts, and explain how it ended."""

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from compare.base.errors import shorten

EXIT_CODES = {"oom": errno.ENOMEM, "refused": errno.EINVAL}
"""The exit code of a process by the contender's status that it ends with. Others mean `crash`."""

_PACKAGES = Path(__file__).resolve().parents[2]
_PARENT_POLL_SECONDS = 0.5
_GRACE_SECONDS = 2.0
_LOG_TAIL = 1 << 14


def make_module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of samestep's modules.

    With -P, a script in the current folder (`compare.py`, `queue.py`) hides no module. If samestep itself lies in that
    folder, `compare.base.start_module` finds it there, and nothing else.
    """
    start = [str(_PACKAGES / "compare" / "base" / "start_module.py")] if Path.cwd() == _PACKAGES else []
    return [sys.executable, "-P", *start, "-m", module, *arguments]


def make_child_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: this process's own, the `added` variables, and Python's safe path.

    With the safe path, Python processes that a framework starts do not run files of the current folder either.
    """
    return dict(os.environ) | dict(added) | {"PYTHONSAFEPATH": "1"}


class ProcessFamily:
    """A process that leads a process group, so that every process that it starts ends with it.

    Args:
        arguments: the command of the process.
        environment: variables to add to this process's own.
        log: the file for its output.
        descriptors: the file descriptors that it inherits.

    Raises:
        OSError: the machine cannot start another process.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, descriptors: Sequence[int] = ()
    ) -> None:
        self._log, self._kills_before = log, count_kernel_kills()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=make_child_environment(environment),
                pass_fds=descriptors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Tell whether the process itself has ended."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Wait until the process itself has ended."""
        self._process.wait()

    def kill(self) -> None:
        """Kill the process and every process that it started, without waiting for their ends."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and every process that it started. A second call does nothing."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold a process that waits for a device
            self._process.wait(_GRACE_SECONDS)

    def death(self) -> tuple[str, str] | None:
        """Return a contender's status and a reason for the end of the process, or None if it does not end."""
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        line = self._last_line()
        if flags := find_unknown_flags(line):
            return "refused", flags
        status, reason = explain_exit_code(code, self._kills_before)
        return status, reason if code < 0 else f"{reason}; last output: {line}"

    def _last_line(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LOG_TAIL))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return shorten(lines[-1], 300) if lines else "nothing"


def find_unknown_flags(line: str) -> str | None:
    """Return what is wrong with the user's XLA_FLAGS, if that is why XLA ended the process, by its last line."""
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.+)", line)
    if unknown is None:
        return None
    return f"XLA does not know {unknown[1].strip()}, which the variable XLA_FLAGS names; allowed: flags of this jaxlib"


def explain_exit_code(code: int, kills_before: int) -> tuple[str, str]:
    """Return a contender's status and a reason for an exit code, which is negative for a signal.

    `kills_before` is the value of `kernel_kills` when the process started.
    """
    if code == -signal.SIGKILL and count_kernel_kills() > kills_before:
        return "oom", "killed by the kernel because memory ran out"
    if code < 0:
        return "crash", f"killed by signal {-code} ({signal.Signals(-code).name})"
    if code == EXIT_CODES["oom"]:
        return "oom", "ended because memory ran out"
    if code == EXIT_CODES["refused"]:
        return "refused", "ended because it refused its input"
    return "crash", f"ended with exit code {code}"


def end_with_parent(parent: int) -> None:
    """Kill this process group when its parent has ended in any way, so that no process is left behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        end()

    threading.Thread(target=watch, daemon=True).start()


def be_killed_first() -> None:
    """If memory runs out, let the kernel kill this process before its parent. Linux only."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(
            "500", encoding="utf-8"
        )  # proc(5): counts as half of all memory more


def end() -> None:
    """Kill this process group."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def count_kernel_kills() -> int:
    """Return how often the kernel has killed a process for lack of memory, or 0 if it does not say. Linux only."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
