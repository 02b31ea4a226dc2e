"""Start fake children as copies of one process that has imported what they need: that takes 10 ms instead of 250.

`tests/unit/test_child.py` and whole programs start children as samestep does.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

NAMES = {"tests.fakebackend": "fake", "tests.fakebackend.other": "other", "tests.fakebackend.third": "third"}
WORKS = hasattr(os, "pidfd_open")  # Linux
_LARGEST = 1 << 17


class Fork:
    """The part of `subprocess.Popen` that samestep uses, for a child that the server forks."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self._code: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            self._code = int(os.read(self._status, 99) or b"-9")  # nothing: the server has ended, and with it its forks
            os.close(self._status)
        return self._code

    def __del__(self) -> None:
        if self._code is None:
            os.close(self._status)


class Subprocess:
    """The module `subprocess`, with a `Popen` that has fake children forked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, arguments: Sequence[str], **options: Any) -> Any:
        module = arguments[arguments.index("-m") + 1] if "-m" in arguments else ""
        if not WORKS or module not in NAMES or arguments[0] != sys.executable:
            return subprocess.Popen(arguments, **options)
        return _server().start(
            NAMES[module], arguments, options["env"], options["stdout"].fileno(), options["pass_fds"]
        )


class _Server:
    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.fakebackend.fork_server", str(other.fileno())]
        variables = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, env=variables, cwd=root, pass_fds=[other.fileno()])
        other.close()
        atexit.register(self._end)
        self._lock = threading.Lock()

    def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log: int, descriptors: Sequence[int]
    ) -> Fork:
        status, write = os.pipe()
        asked = {"name": name, "arguments": arguments[-2:], "environment": environment, "descriptors": descriptors}
        message = json.dumps(asked | {"folder": str(Path.cwd())}).encode()
        with self._lock:
            socket.send_fds(self._socket, [message], [write, log, *descriptors])
            os.close(write)
            return Fork(int(self._socket.recv(99)), status)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


_ONE_SERVER = threading.Lock()


def _serve(channel: socket.socket) -> None:
    """Fork a child for every message, and write its exit code when it ends, until no process can ask any more."""
    statuses = dict[int, tuple[int, int]]()
    while True:
        for ready in select.select([channel.fileno(), *statuses], [], [])[0]:
            if ready in statuses:
                pid, status = statuses.pop(ready)
                os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(ready)
                os.close(status)
                continue
            message, descriptors, _, _ = socket.recv_fds(channel, _LARGEST, 16)
            if not message:
                return
            if (pid := os.fork()) == 0:
                for number in statuses:
                    os.close(number)
                for _, status in statuses.values():
                    os.close(status)
                _be_child(channel, json.loads(message), descriptors)
            statuses[os.pidfd_open(pid)] = pid, descriptors[0]
            for number in descriptors[1:]:
                os.close(number)


def _be_child(channel: socket.socket, asked: dict[str, Any], received: Sequence[int]) -> NoReturn:
    """Become the child that was asked for: its session, folder, variables and descriptors, and then its work."""
    os.setsid()
    channel.send(b"%d" % os.getpid())
    high = [_move_high(number) for number in received]
    channel.close()
    os.close(high[0])  # where the server writes how this ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in zip([nothing, high[1], high[1], *high[2:]], [0, 1, 2, *asked["descriptors"]], strict=True):
        os.dup2(source, target)
    for number in high[1:]:
        os.close(number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[1:] = asked["arguments"]
    code = 1
    try:
        serve_as(asked["name"])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def _move_high(number: int) -> int:
    """Move a descriptor out of the way of those that have to have a number of their own."""
    import fcntl

    high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 500)
    os.close(number)
    return high


if __name__ == "__main__":
    import gc

    import numpy as np

    from tests.fakebackend.session import serve_as

    np.median([np.finfo(kind).eps for kind in (np.float16, np.float32, np.float64)])  # imports numpy.ma once for all
    gc.freeze()  # else a child's first collection writes to every page that it shares with this process

    _serve(socket.socket(fileno=int(sys.argv[1])))
