"""One child process that serves one backend: start it, call it with a deadline, end it whatever happens."""

import contextlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from compare.base import process_family, protocol
from compare.base.interface import ContenderFailed
from compare.cluster.cluster import Share

_LIVENESS_SECONDS = 1.0
_WORDS_SECONDS = 15.0


class Child:
    """A worker process in a process group of its own, so that its whole family ends with it.

    Args:
        name: the contender's name, for messages.
        package: the backend package, run as `python -m PACKAGE`.
        environment: variables added to this process's own.
        folder: where the child's log is written.
        share: those of its processes that run on other machines, started already.

    Raises:
        ContenderFailed: when the machine cannot start another process.
    """

    def __init__(
        self, name: str, package: str, environment: Mapping[str, str], folder: Path, share: Share | None = None
    ) -> None:
        self.name, self._share = name, share
        log = folder / f"{len(list(folder.glob('*.log'))):03d}-{name.replace(':', '_').replace('#', '_')}.log"
        child_read, parent_write = os.pipe()
        parent_read, child_write = os.pipe()
        pipe = child_read, child_write
        inherited = pipe if share is None else (*pipe, share.descriptor)
        try:
            self._process = process_family.ProcessFamily(
                process_family.module_command(package, *map(str, pipe)), environment, log, inherited
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
            if share is not None:
                share.inherited()
        self._channel = protocol.Channel(parent_read, parent_write)
        self._sent = time.monotonic()
        self._hello: dict[str, Any] | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def greet(self, deadline: float) -> dict[str, Any]:
        """Wait for the worker's first message, unless it has come, and check the protocol version.

        Raises:
            ContenderFailed: when the child does not come up in time or speaks another version.
        """
        if self._hello is not None:
            return self._hello
        hello = self._receive("starting", deadline)
        if hello.get("protocol") != protocol.VERSION:
            self._fail("crash", f"speaks protocol {hello.get('protocol')!r}, this is {protocol.VERSION}")
        if not isinstance(hello.get("versions"), dict):
            self._fail("crash", f"starting: broken message: {str(hello)[:80]}")
        self._hello = hello
        return hello

    def send(self, command: str, **arguments: Any) -> None:
        """Start a command in the child; `reply` waits for its end."""
        self._sent = time.monotonic()
        try:
            self._channel.send({"command": command, **arguments})
        except OSError:
            self._died(command)

    def has_replied(self, deadline: float) -> bool:
        """Tell whether `reply` would not wait, but for the words of a child whose other processes are lost."""
        lost = self._share is not None and self._share.lost() is not None
        over = self._process.has_ended() or lost or time.monotonic() > self._sent + deadline
        return over or self._channel.has_received()

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
                full = message["error"].get("disk_full") is True
                return self._fail(cast(str, status), f"{command}: {reason}", raised=True, disk_full=full)
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
        self._process.end()  # at once: an orderly exit would save nothing, and frameworks take seconds
        if self._share is not None:
            self._share.end()

    def _receive(self, doing: str, deadline: float) -> protocol.Message:
        remaining, lost_at = math.inf, None
        try:
            while remaining > 0:
                remaining = self._sent + deadline - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    return self._channel.receive(max(0.0, min(remaining, _LIVENESS_SECONDS)))
                # A process that the child forked holds the pipe open after the child's death: no end of file comes.
                if self._process.has_ended():
                    raise EOFError
                if self._share is not None and self._share.lost() is not None:
                    lost_at = lost_at or time.monotonic()
                    if time.monotonic() > lost_at + _WORDS_SECONDS:  # the child itself has not said why, nor ended
                        self._fail("crash", doing)
            self._fail("timeout", f"{doing} took longer than its deadline of {deadline:g} s")
        except EOFError:
            self._died(doing)
        except protocol.ProtocolError as error:
            self._fail("crash", f"{doing}: broken message: {error}")

    def _died(self, doing: str) -> NoReturn:
        match self._process.death():
            case None:
                self._fail("crash", f"{doing}: the process closed its pipe without ending")
            case status, reason:
                self._fail(status, f"{doing}: {reason}")

    def _fail(self, status: str, reason: str, *, raised: bool = False, disk_full: bool = False) -> NoReturn:
        lost = None if self._share is None or status != "crash" else self._share.lost()
        if lost is not None:
            status, reason = lost[0], f"{reason}; {lost[1]}"
        self.close()
        raise ContenderFailed(status, reason, raised=raised, disk_full=disk_full)
