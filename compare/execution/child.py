"""One child process that serves one backend: start it, call it with deadlines, and end it whatever happens."""

import contextlib
import math
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from compare.base import commands, process_family, protocol
from compare.base.commands import Command, Greeting
from compare.base.interface import ContenderFailed
from compare.cluster.peers import Share
from compare.execution.progress_watch import ProgressWatch

_LIVENESS_SECONDS = 1.0
_LAST_WORDS_SECONDS = 15.0
_Reply = TypeVar("_Reply")


class Child:
    """A worker process. It has a process group of its own, so that every process it starts ends with it.

    Args:
        name: the contender's name, for messages.
        package: the backend package, run as `python -m PACKAGE`.
        environment: variables to add to this process's own.
        folder: the folder of the child's log.
        share: the contender's processes on other machines, already started.
        deadline: seconds that replace the deadline of every command.

    Raises:
        ContenderFailed: the machine cannot start another process.
    """

    def __init__(
        self,
        name: str,
        package: str,
        environment: Mapping[str, str],
        folder: Path,
        share: Share | None = None,
        deadline: float | None = None,
    ) -> None:
        self.name, self._share, self._deadline = name, share, deadline
        log = folder / f"{len(list(folder.glob('*.log'))):03d}-{re.sub('[^A-Za-z0-9._-]', '_', name)}.log"
        child_read, parent_write = os.pipe()
        parent_read, child_write = os.pipe()
        pipe = child_read, child_write
        inherited = pipe if share is None else (*pipe, share.descriptor)
        try:
            self._process = process_family.ProcessFamily(
                process_family.make_module_command(package, *map(str, pipe)), environment, log, inherited
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
                share.close_listener()
        self._channel = protocol.Channel(parent_read, parent_write)
        self._sent = time.monotonic()
        self._watch = ProgressWatch(self._process.pid, environment)
        self._greeting: Greeting | None = None
        self._ahead: list[Command[Any]] = []
        self._answers: list[protocol.Message] = []
        self._closed = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def greet(self, seconds: float | None = None) -> Greeting:
        """Wait for the worker's first message and check the version of the protocol. Later calls do not wait.

        `seconds` replaces the deadline.

        Raises:
            ContenderFailed: the child does not come up in time, or speaks another version.
        """
        if self._greeting is None:
            message = self._receive("starting", self._start_seconds if seconds is None else seconds)
            if message.get("protocol") != protocol.VERSION:
                self._fail("crash", f"speaks protocol {message.get('protocol')!r}, this is {protocol.VERSION}")
            try:
                greeting = commands.read_typed(Greeting, message)
            except protocol.ProtocolError as error:
                self._fail("crash", f"starting: broken message: {error}")
            self._greeting = greeting
            return greeting
        return self._greeting

    def has_greeted(self) -> bool:
        """Tell whether `greet` would return or fail at once."""
        return self._greeting is not None or self._has_message(self._start_seconds)

    def send_ahead(self, commands: Sequence[Command[Any]]) -> None:
        """Start commands before `send` is called for each of them, in this order. `settle` waits for their ends."""
        for command in commands:
            self._write(command)
        self._ahead += commands

    def has_ahead(self, command: Command[Any]) -> bool:
        """Tell whether `send_ahead` has started this command, and `send` has not been called for it."""
        return command in self._ahead

    def settle(self) -> bool:
        """Wait until the child has come up and done all that `send_ahead` has started. Tell whether it succeeded.

        Raises:
            ContenderFailed: the child does not come up.
        """
        self.greet()
        try:
            while len(self._answers) < len(self._ahead):
                command = self._ahead[len(self._answers)]
                self._answers.append(self._receive(command.name, command.seconds(self._deadline)))
        except ContenderFailed:
            return False
        return all("value" in answer for answer in self._answers)

    def send(self, command: Command[_Reply]) -> None:
        """Start a command in the child. `reply` waits for its end."""
        if command in self._ahead:
            self._sent = time.monotonic()
            self._watch.restart()
        else:
            self._write(command)

    def _write(self, command: Command[Any]) -> None:
        self._sent = time.monotonic()
        self._watch.restart()
        try:
            self._channel.send(command.message())
        except OSError:
            self._report_death("starting" if self._greeting is None else command.name)

    def has_replied(self, command: Command[_Reply], seconds: float | None = None) -> bool:
        """Tell whether `reply` would return or fail without a long wait. `seconds` replaces the deadline."""
        return self._has_message(command.seconds(self._deadline) if seconds is None else seconds)

    def reply(self, command: Command[_Reply], seconds: float | None = None) -> _Reply:
        """Return the reply to the command that `send` started.

        The deadline runs from the moment when the command was sent. `seconds` replaces it.

        Raises:
            ContenderFailed: with status `oom`, `crash`, `timeout` or `refused`; the child has then ended.
        """
        if command in self._ahead:
            self._ahead.remove(command)
        if self._answers:
            message = self._answers.pop(0)
        else:
            message = self._receive(command.name, command.seconds(self._deadline) if seconds is None else seconds)
        if "value" in message:
            try:
                return command.read_reply(message["value"])
            except protocol.ProtocolError as error:
                self._fail("crash", f"{command.name}: broken message: {error}")
        match message.get("error"):
            case {"status": "oom" | "crash" | "refused" as status, "reason": str(reason)}:
                full = message["error"].get("disk_full") is True
                return self._fail(cast(str, status), f"{command.name}: {reason}", raised=True, disk_full=full)
            case _:
                return self._fail("crash", f"{command.name}: broken message: {str(message)[:80]}")

    def call(self, command: Command[_Reply], seconds: float | None = None) -> _Reply:
        """Send a command and return its reply."""
        self.send(command)
        return self.reply(command, seconds)

    def close(self) -> None:
        """End the child and every process that it started. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        self._process.end()  # at once, because an orderly exit saves nothing and takes frameworks seconds
        if self._share is not None:
            self._share.end()

    def kill(self) -> None:
        """Kill the child and every process that it started. `close` must follow."""
        if not self._closed:
            self._process.kill()

    @property
    def _start_seconds(self) -> float:
        return commands.START_SECONDS if self._deadline is None else self._deadline

    def _has_message(self, seconds: float) -> bool:
        lost = self._share is not None and self._share.lost() is not None
        over = self._process.has_ended() or lost or time.monotonic() > self._sent + seconds
        return over or bool(self._answers) or self._channel.has_received() or self._find_stall() is not None

    def _find_stall(self) -> str | None:
        """Say why the child makes no progress, or return None. With a share it may wait for other machines."""
        return self._watch.find_stall() if self._share is None else None

    def _receive(self, doing: str, seconds: float) -> protocol.Message:
        remaining, lost_at = math.inf, None
        try:
            while remaining > 0:
                remaining = self._sent + seconds - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    return self._channel.receive(max(0.0, min(remaining, _LIVENESS_SECONDS)))
                # A process forked by the child keeps the pipe open after the child's death, so no end of file comes.
                if self._process.has_ended():
                    raise EOFError
                if self._share is not None and self._share.lost() is not None:
                    lost_at = lost_at or time.monotonic()
                    if time.monotonic() > lost_at + _LAST_WORDS_SECONDS:  # the child has neither said why nor ended
                        self._fail("crash", doing)
                if stall := self._find_stall():
                    self._fail("timeout", f"{doing} {stall}")
            self._fail("timeout", f"{doing} took longer than its deadline of {seconds:g} s")
        except EOFError:
            self._report_death(doing)
        except protocol.ProtocolError as error:
            self._fail("crash", f"{doing}: broken message: {error}")

    def _report_death(self, doing: str) -> NoReturn:
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


def close_all(children: Collection[Child]) -> None:
    """End children side by side, because a process that used a GPU takes a moment to end."""
    for child in children:
        child.kill()
    for child in children:
        child.close()
