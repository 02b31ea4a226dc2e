"""Send messages between the processes of one run, over TCP. A message is JSON, followed by the bytes of its arrays.

A connection begins with a proof that both ends have the same token. The token itself is not sent (HMAC-SHA256 over both
ends' random numbers: RFC 2104). Later messages are neither encrypted nor signed. The machines must trust each other, as
they must when NCCL and gloo exchange gradients.
"""

import contextlib
import hmac
import json
import math
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from compare.base.interface import Array, Arrays, Batch, RunSpec
from compare.base.protocol import Message, ProtocolError

_LENGTHS = struct.Struct("!IQ")
_LONGEST_JSON, _LONGEST_ARRAYS = 64 << 20, 1 << 40
_KINDS = "biuf"  # of dtype: booleans, whole numbers and floats
_NONCE, _PROOF = 32, 32
_PROOF_SECONDS, _RETRY_SECONDS = 10.0, 0.2
# A machine that no longer answers is given up after idle + interval * count seconds (man 7 tcp).
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}

Received = Callable[[Message, Arrays], None]


class Wire:
    """One end of a connection. The other end has proved that it belongs to the same run."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._sending = connection, threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def address(self) -> str:
        """The numeric address of this end."""
        return self._connection.getsockname()[0]

    def send(self, message: Message, arrays: Mapping[str, Array] | None = None) -> None:
        """Write one whole message. Any thread may call this.

        Raises:
            OSError: the other end has hung up.
            ValueError: the message has a NaN or infinity, or an array does not hold numbers.
        """
        found = {name: np.asarray(array) for name, array in (arrays or {}).items()}
        if strange := [name for name, array in found.items() if array.dtype.kind not in _KINDS]:
            raise ValueError(f"arrays of no number: {', '.join(strange)}")
        layout = [[name, array.dtype.str, array.shape] for name, array in found.items()]
        text = json.dumps([message, layout], allow_nan=False).encode()
        parts = [_bytes(array) for array in found.values()]  # before anything is sent: one may not find memory
        with self._sending:
            self._connection.sendall(_LENGTHS.pack(len(text), sum(map(len, parts))) + text)
            for part in parts:
                self._connection.sendall(part)

    def receive(self) -> tuple[Message, Arrays]:
        """Wait for the next message and return it.

        Raises:
            EOFError: the other end has hung up.
            ProtocolError: the bytes are not a message.
        """
        try:
            json_length, arrays_length = _LENGTHS.unpack(_receive_bytes(self._connection, _LENGTHS.size))
            if json_length > _LONGEST_JSON or arrays_length > _LONGEST_ARRAYS:
                raise ProtocolError(f"a message of {json_length} + {arrays_length} bytes")
            message, arrays = _parse(_receive_bytes(self._connection, json_length), arrays_length)
            for array in arrays.values():
                _fill(self._connection, _bytes(array))
        except OSError as error:
            raise EOFError from error
        return message, arrays

    def read(self, received: Received, ended: Callable[[Exception], None]) -> None:
        """Start a thread that gives each message to `received`. When it ends, it gives the error to `ended`."""

        def work() -> None:
            try:
                while True:
                    received(*self.receive())
            except Exception as error:
                ended(error)

        threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        """Hang up, which also ends a thread that reads."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens to every machine. Port 0 stands for a free port.

    Raises:
        OSError: the port is taken.
    """
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def accept(listener: socket.socket, token: str, seconds: float) -> Wire | None:
    """Return the next connection, or None if none came in time or its token was wrong."""
    listener.settimeout(seconds)
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        return None
    try:
        connection.settimeout(_PROOF_SECONDS)
        theirs, ours = bytes(_receive_bytes(connection, _NONCE)), secrets.token_bytes(_NONCE)
        connection.sendall(ours + _proof(token, b"waits", theirs, ours))
        if hmac.compare_digest(_receive_bytes(connection, _PROOF), _proof(token, b"comes", theirs, ours)):
            return Wire(connection)
    except (OSError, EOFError):
        pass
    connection.close()
    return None


def connect(address: str, port: int, token: str, seconds: float) -> Wire:
    """Return a connection to a process that waits in `accept`. Try again for so many seconds.

    Raises:
        PermissionError: the other end has another token.
        OSError: no process answers.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=_PROOF_SECONDS)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(_RETRY_SECONDS)
    try:
        # The other end may be busy with connections before this one.
        connection.settimeout(max(_PROOF_SECONDS, end - time.monotonic()))
        ours = secrets.token_bytes(_NONCE)
        connection.sendall(ours)
        answer = bytes(_receive_bytes(connection, _NONCE + _PROOF))
        theirs, proof = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(proof, _proof(token, b"waits", ours, theirs)):
            raise PermissionError("the other end has another token")
        connection.sendall(_proof(token, b"comes", ours, theirs))
    except EOFError as error:
        connection.close()
        raise ConnectionError("the other end hung up") from error
    except OSError:
        connection.close()
        raise
    return Wire(connection)


def pack(value: Any, arrays: Arrays) -> Any:
    """Return a value as JSON, and put its arrays into `arrays`.

    A value has JSON types, arrays, `Batch` and `RunSpec`.
    """
    match value:
        case np.ndarray() | np.generic():
            name = str(len(arrays))
            arrays[name] = np.asarray(cast(Array, value))
            return {"array": name}
        case Batch():
            return {"batch": [pack(part, arrays) for part in (value.images, value.labels, value.levels)]}
        case RunSpec():
            return {"spec": value.to_json()}
        case dict():
            return {"dict": {name: pack(each, arrays) for name, each in cast("dict[str, Any]", value).items()}}
        case list() | tuple():
            return [pack(each, arrays) for each in cast("list[Any]", value)]
        case _:
            return value


def unpack(value: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the value of `pack`, with lists for tuples."""
    match value:
        case {"array": name}:
            return arrays[cast(str, name)]
        case {"batch": parts}:
            return Batch(*(unpack(part, arrays) for part in cast("list[Any]", parts)))
        case {"spec": spec}:
            return RunSpec(**cast("dict[str, Any]", spec))
        case {"dict": values}:
            return {name: unpack(each, arrays) for name, each in cast("dict[str, Any]", values).items()}
        case list():
            return [unpack(each, arrays) for each in cast("list[Any]", value)]
        case _:
            return value


def _proof(token: str, end: bytes, coming: bytes, waiting: bytes) -> bytes:
    return hmac.digest(token.encode(), end + coming + waiting, "sha256")


def _parse(text: bytearray, size: int) -> tuple[Message, Arrays]:
    """Return a message and its empty arrays, which take `size` bytes together.

    Raises:
        ProtocolError: the text is not a message.
    """
    try:
        message, layout = json.loads(text)
        told = [(str(name), np.dtype(str(dtype)), tuple(map(int, shape))) for name, dtype, shape in layout]
        if not isinstance(message, dict):
            raise ProtocolError("not an object")
        if any(dtype.kind not in _KINDS or min(shape, default=0) < 0 for _, dtype, shape in told):
            raise ProtocolError("arrays of no number")
        if sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in told) != size:
            raise ProtocolError(f"arrays that are not of {size} bytes")
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape in told}
    except (ValueError, TypeError, OverflowError, SyntaxError, RecursionError) as error:
        raise ProtocolError("not JSON") from error
    if len(arrays) < len(told):
        raise ProtocolError("arrays of one name")
    return cast(Message, message), arrays


def _bytes(array: Array) -> memoryview:
    """Return an array's bytes in C order. A contiguous array is not copied, because batches may have gigabytes."""
    return array.reshape(-1).view(np.uint8).data


def _receive_bytes(connection: socket.socket, length: int) -> bytearray:
    found = bytearray(length)
    _fill(connection, memoryview(found))
    return found


def _fill(connection: socket.socket, view: memoryview) -> None:
    got, length = 0, len(view)
    while got < length:
        more = connection.recv_into(view[got:])
        if not more:
            raise EOFError
        got += more
