"""Exchange messages between the parent and a worker over a pipe: one JSON object a line. Arrays travel as files.

The pipe has its own file descriptors, so a framework's output on standard output or error cannot reach it.
"""

import json
import math
import os
import select
import time
from collections.abc import Mapping
from typing import Any, NoReturn, SupportsFloat

VERSION = 1
_CHUNK = 1 << 16
_LONGEST_LINE = 64 << 20

Message = dict[str, Any]


class ProtocolError(Exception):
    """The other end sent something that is not a message of this protocol."""


def _no_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no JSON")


class Channel:
    """One end of the pipe pair."""

    def __init__(self, read_descriptor: int, write_descriptor: int) -> None:
        self._read = read_descriptor
        self._write = write_descriptor
        self._buffer = bytearray()

    def send(self, message: Message) -> None:
        """Write one whole message.

        Raises:
            BrokenPipeError: the other end has hung up.
            ValueError: the message has a NaN or infinity, for which JSON has no literal.
        """
        data = memoryview(json.dumps(message, allow_nan=False).encode() + b"\n")
        while data:
            data = data[os.write(self._write, data) :]

    def has_received(self) -> bool:
        """Tell whether a part of a message has arrived, or the other end has hung up."""
        return bool(self._buffer or select.select([self._read], [], [], 0)[0])

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message. Wait at most `timeout` seconds. None waits for ever.

        Raises:
            TimeoutError: no message came in time.
            EOFError: the other end has hung up.
            ProtocolError: the message is not one JSON object.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (end := self._buffer.find(b"\n")) < 0:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._read], [], [], remaining)
            if not ready:
                raise TimeoutError
            chunk = os.read(self._read, _CHUNK)
            if not chunk:
                raise EOFError
            self._buffer += chunk
            if len(self._buffer) > _LONGEST_LINE:
                raise ProtocolError("a message exceeds 64 MiB")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not JSON: {line[:80]!r}") from error
        if not isinstance(message, dict):
            raise ProtocolError(f"not an object: {line[:80]!r}")
        return message  # pyright: ignore[reportUnknownVariableType] -- json gives dict[Unknown, Unknown]

    def close(self) -> None:
        """Close both descriptors. Another channel may get their numbers."""
        os.close(self._read)
        os.close(self._write)
        self._read = self._write = -1


def drop_infinite(value: SupportsFloat) -> float | None:
    """Return the number, or None for NaN and infinity, which JSON cannot carry."""
    number = float(value)
    return number if math.isfinite(number) else None


def restore_infinite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the numbers with infinity for None. This undoes `finite` where NaN cannot occur."""
    return {name: math.inf if value is None else value for name, value in values.items()}
