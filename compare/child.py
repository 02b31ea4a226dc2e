"""One child process that serves one backend: start it, call it with a deadline, end it whatever happens."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from compare import protocol
from compare.interface import ContenderFailed

_GRACE_SECONDS = 2.0
_LIVENESS_SECONDS = 1.0
_LOG_TAIL = 1 << 14


def _kernel_kills() -> int:
    """Return how often this machine's kernel has killed a process for memory, 0 where it does not say (Linux only)."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


class Child:
    """A worker process in a process group of its own, so that its whole family ends with it.

    Args:
        name: the contender's name, for messages.
        package: the backend package, run as `python -m PACKAGE`.
        environment: variables added to this process's own.
        folder: where the child's log is written.

    Raises:
        ContenderFailed: when the machine cannot start another process.
    """

    def __init__(self, name: str, package: str, environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{len(list(folder.glob('*.log'))):03d}-{name.replace(':', '_').replace('#', '_')}.log"
        self._kills_before = _kernel_kills()
        child_read, parent_write = os.pipe()
        parent_read, child_write = os.pipe()
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", package, str(child_read), str(child_write)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(os.environ) | dict(environment),
                    pass_fds=(child_read, child_write),
                    start_new_session=True,
                )
        except BaseException as error:
            os.close(parent_read)
            os.close(parent_write)
            if isinstance(error, OSError):
                raise ContenderFailed("crash", f"the process could not be started: {error.strerror}") from error
            raise
        finally:
            os.close(child_read)
            os.close(child_write)
        self._channel = protocol.Channel(parent_read, parent_write)
        self._sent = time.monotonic()
        self._closed = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def greet(self, deadline: float) -> dict[str, Any]:
        """Wait for the worker's first message and check the protocol version.

        Raises:
            ContenderFailed: when the child does not come up in time or speaks another version.
        """
        hello = self._receive("starting", deadline)
        if hello.get("protocol") != protocol.VERSION:
            self._fail("crash", f"speaks protocol {hello.get('protocol')!r}, this is {protocol.VERSION}")
        if not isinstance(hello.get("versions"), dict):
            self._fail("crash", f"starting: broken message: {str(hello)[:80]}")
        return hello

    def send(self, command: str, **arguments: Any) -> None:
        """Start a command in the child; `reply` waits for its end."""
        self._sent = time.monotonic()
        try:
            self._channel.send({"command": command, **arguments})
        except OSError:
            self._died(command)

    def has_replied(self, deadline: float) -> bool:
        """Tell whether `reply` would not wait: the answer is there, or none will come within `deadline`."""
        gone = self._process.poll() is not None
        return gone or self._channel.has_received() or time.monotonic() > self._sent + deadline

    def reply(self, command: str, deadline: float) -> Any:
        """Return the value of the command that `send` started, which has `deadline` seconds from then.

        Raises:
            ContenderFailed: with status `oom`, `crash`, `timeout` or `refused`; the child is then gone.
        """
        message = self._receive(command, deadline)
        if "value" in message:
            return message["value"]
        match message.get("error"):
            case {"status": "oom" | "crash" | "refused" as status, "reason": str(reason)}:
                return self._fail(cast(str, status), f"{command}: {reason}")
            case _:
                return self._fail("crash", f"{command}: broken message: {str(message)[:80]}")

    def call(self, command: str, deadline: float, **arguments: Any) -> Any:
        """`send` and `reply` in one."""
        self.send(command, **arguments)
        return self.reply(command, deadline)

    def close(self) -> None:
        """End the child and every process it started; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        self._kill()  # at once: a worker holds nothing that an orderly exit would save, and frameworks take seconds
        self._process.wait()

    def _receive(self, doing: str, deadline: float) -> protocol.Message:
        remaining = math.inf
        try:
            while remaining > 0:
                remaining = self._sent + deadline - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    return self._channel.receive(max(0.0, min(remaining, _LIVENESS_SECONDS)))
                # A process that the child forked holds the pipe open after the child's death: no end of file comes.
                if self._process.poll() is not None:
                    raise EOFError
            self._fail("timeout", f"{doing} took longer than its deadline of {deadline:g} s")
        except EOFError:
            self._died(doing)
        except protocol.ProtocolError as error:
            self._fail("crash", f"{doing}: broken message: {error}")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _died(self, doing: str) -> NoReturn:
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._fail("crash", f"{doing}: the process closed its pipe without ending")
        if code == -signal.SIGKILL and _kernel_kills() > self._kills_before:
            self._fail("oom", f"{doing}: killed by the kernel because memory ran out")
        if code < 0:
            self._fail("crash", f"{doing}: killed by signal {-code} ({signal.Signals(-code).name})")
        self._fail("crash", f"{doing}: ended with exit code {code}; last output: {self._last_line()}")

    def _fail(self, status: str, reason: str) -> NoReturn:
        self.close()
        raise ContenderFailed(status, reason)

    def _last_line(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LOG_TAIL))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "nothing"
