"""The processes of one contender that trains in several: how the first finds, calls and watches the others.

The contender's worker is the first. It starts those of its own machine, while it imports its framework where it is
told to (`begin`); those of other machines are started there by the samestep that follows this run's. All connect to the
first, meet by their framework's own means (`ProcessGroup.join`) and then carry out what the first tells them
(`compare.worker.rank_worker`).
"""

import contextlib
import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare.base import process_family, process_group
from compare.base.interface import Arrays, Refused, RunSpec, Session
from compare.base.process_group import FURTHER, MEETING, ProcessGroup, RankInfo
from compare.base.protocol import Message
from compare.cluster import wire
from compare.cluster.launch_info import TOKEN
from compare.cluster.wire import Wire

Ended = Callable[[Exception], None]

_WORDS_LAST_SECONDS = 5.0
_POLL_SECONDS = 0.5
_HUNG_UP: Message = {"status": "crash", "reason": "has hung up"}


class LocalRanks:
    """The further processes of this machine, and where all of a contender's come.

    Args:
        package: of the backend.
        here: how many there are on each machine, this one included.
        device: `cpu` or `cuda`.
    """

    def __init__(self, package: str, here: int, device: str) -> None:
        self._package, self.here, self.device = package, here, device
        self.listener, self.token = _meeting()
        self.kills_before, self.processes = process_family.kernel_kills(), dict[int, "subprocess.Popen[bytes]"]()

    @property
    def all_live(self) -> bool:
        """Whether they were started, and none has ended."""
        return len(self.processes) == self.here - 1 and all(each.poll() is None for each in self.processes.values())

    def start(self) -> None:
        """Start them, in place of those that were.

        Raises:
            OSError: the machine cannot start another process.
        """
        self._end()
        port = self.listener.getsockname()[1]
        ranks = [RankInfo(rank, process_group.machines() * self.here, self.here) for rank in range(1, self.here)]
        self.kills_before = process_family.kernel_kills()
        for rank_info in ranks:
            own = {TOKEN: self.token} | process_group.own_gpu(rank_info, self.device, os.environ)
            command = process_group.start_command(self._package, rank_info, port)
            self.processes[rank_info.rank] = subprocess.Popen(command, env=dict(os.environ) | own)

    def close(self) -> None:
        """End them, and have nobody come."""
        self._end()
        self.listener.close()

    def _end(self) -> None:
        for each in self.processes.values():
            each.kill()
            each.wait()
        self.processes.clear()


_begun: LocalRanks | None = None


def begin(package: str) -> None:
    """Start a contender's further processes where the runner says which, to import their framework while this one does.

    One that cannot be started yet is when a session is opened, which says why.
    """
    global _begun
    told = os.environ.pop(FURTHER, None)  # not for them
    if told is not None:
        with contextlib.suppress(OSError):
            _begun = LocalRanks(package, **json.loads(told))
            _begun.start()


def _further(package: str, here: int, device: str) -> LocalRanks:
    """Return the processes that were begun if they are those, new ones if not, or if one is tired of waiting."""
    global _begun
    begun, _begun = _begun, None
    if begun is not None and (begun.here, begun.device) != (here, device):
        begun.close()
        begun = None
    if begun is None:
        begun = LocalRanks(package, here, device)
    if not begun.all_live:
        begun.start()
    return begun


class RankController:
    """The processes of one contender, which live from session to session, seen from the first.

    Args:
        group: what the backend does in each.
        here: how many there are on each machine, this one included.
        device: `cpu` or `cuda`.

    Raises:
        Refused: there are not so many devices, or other versions elsewhere.
        RuntimeError, MemoryError: another process did not come up.
    """

    def __init__(self, group: ProcessGroup, here: int, device: str) -> None:
        self._process_group, self.count = group, process_group.machines() * here
        self._session: Session | None = None
        self._wires: dict[int, Wire] = {}
        self._answers: queue.SimpleQueue[tuple[int, Message, Arrays]] = queue.SimpleQueue()
        self._words: dict[int, Message] = {}
        further = _further(group.package, here, device)
        self._kills_before, self._locals = further.kills_before, further.processes
        self._gather(further.listener, further.token)
        rank_info = RankInfo(0, self.count, here, interface=_interface(self._wires, here))
        port = _free_port()
        for each in self._wires.values():
            _sent(each, {"join": port, "device": device})
        group.join(rank_info, device, port)
        self._rank_info = rank_info

    def opened(self, spec: RunSpec) -> Session:
        """Open a session in every process, and return this one's."""

        def open_here() -> Any:
            self._session = None  # its memory is given back before another is opened
            self._session = self._process_group.open(spec, self._rank_info)

        self._together("open", [(spec,)] * (self.count - 1), open_here)
        assert self._session is not None
        return self._session

    def close_session(self) -> None:
        """Give the session's memory back in every process."""

        def close_here() -> None:
            self._session = None

        self._together("close", [()] * (self.count - 1), close_here)

    def all(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of the session in every process; return what each gave, in order."""
        return self._together(name, [arguments] * (self.count - 1), lambda: getattr(self._session, name)(*arguments))

    def each(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Call a method in every process, each with its own argument; return what each gave, in order."""
        others = [(argument,) for argument in arguments[1:]]
        return self._together(name, others, lambda: getattr(self._session, name)(arguments[0]))

    def _together(self, name: str, arguments: Sequence[tuple[Any, ...]], here: Callable[[], Any]) -> list[Any]:
        for rank, given in enumerate(arguments, start=1):
            arrays: Arrays = {}
            _sent(self._wires[rank], {"call": name, "arguments": wire.pack(given, arrays)}, arrays)
        try:
            own = here()
        except Exception:
            self._replies(_WORDS_LAST_SECONDS)  # one that failed first is the reason for what failed here
            raise
        return [own, *self._replies(None)]

    def _replies(self, seconds: float | None) -> list[Any]:
        """Return what the others answer; without `seconds`, wait for all.

        Raises:
            MemoryError, RuntimeError, Refused: as one says that it has failed.
        """
        end, found = None if seconds is None else time.monotonic() + seconds, dict[int, Any]()
        while len(found) < self.count - 1:
            try:
                left = None if end is None else max(0.0, end - time.monotonic())
                rank, message, arrays = self._answers.get(timeout=left)
            except queue.Empty:
                break
            found[rank] = self._value(rank, message, arrays)
        return [found.get(rank) for rank in range(1, self.count)]

    def _value(self, rank: int, message: Message, arrays: Arrays) -> Any:
        if "value" in message:
            return wire.unpack(message["value"], arrays)
        if message == _HUNG_UP:
            time.sleep(_WORDS_LAST_SECONDS)  # what watches it from outside may know more
        raise self._error(rank, message)

    def _error(self, rank: int, message: Message) -> Exception:
        kind = {"oom": MemoryError, "refused": Refused}.get(str(message.get("status")), RuntimeError)
        return kind(f"rank {rank} of {self.count}: {message.get('reason')}")

    def _gather(self, listener: socket.socket, token: str) -> None:
        """Wait until every process has come. The runner's deadline ends the waiting for one that does not."""
        own = self._process_group.versions()
        while len(self._wires) < self.count - 1:
            for rank, process in self._locals.items():
                if rank not in self._wires and process.poll() is not None:
                    raise self._error(rank, self._left(process))
            came = wire.accept(listener, token, _POLL_SECONDS)
            if came is not None:
                hello, _ = came.receive()
                if hello["versions"] != own:
                    raise Refused(
                        f"rank {hello['rank']} of {self.count}, on {hello['host']}, has {_listed(hello['versions'])}; "
                        f"allowed: {_listed(own)}, as on the first machine"
                    )
                self._wires[hello["rank"]] = came
        listener.close()
        for rank, each in self._wires.items():
            each.read(self._received(rank), self._ended(rank))
        for rank, process in self._locals.items():
            threading.Thread(target=self._watch, args=(process, self._ended(rank)), daemon=True).start()

    def _left(self, process: "subprocess.Popen[bytes]") -> Message:
        """Return how a process of this machine has ended, which is about to."""
        try:
            code = process.wait(_WORDS_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            return _HUNG_UP
        return dict(zip(("status", "reason"), process_family.explain_exit_code(code, self._kills_before), strict=True))

    @staticmethod
    def _watch(process: "subprocess.Popen[bytes]", ended: Ended) -> None:
        """See the end of a process whose connection another, forked from it, still holds open."""
        process.wait()
        time.sleep(_WORDS_LAST_SECONDS)  # its last words are read first
        ended(EOFError())

    def _received(self, rank: int) -> wire.Received:
        def put(message: Message, arrays: Arrays) -> None:
            if "reason" in message:
                self._words[rank] = message
            self._answers.put((rank, message, arrays))

        return put

    def _ended(self, rank: int) -> Ended:
        def end(error: Exception) -> None:
            """End this process, which may be waiting for that one in an exchange, once there was time to say why."""
            if not isinstance(error, EOFError):
                told = process_group.last_words(self._process_group.out_of_memory, error)
            else:
                told = self._left(self._locals[rank]) if rank in self._locals else _HUNG_UP
            self._answers.put((rank, told, {}))
            time.sleep(2 * _WORDS_LAST_SECONDS)
            words = self._words.get(rank, told)
            sys.stderr.write(f"{self._error(rank, words)}\n")
            sys.stderr.flush()
            os._exit(process_group.exit_code(words))

        return end


def _interface(wires: Mapping[int, Wire], here: int) -> str | None:
    """Return the interface over which the first process of another machine came."""
    return process_group.interface_of(wires[here].address) if here in wires else None


def _meeting() -> tuple[socket.socket, str]:
    """Return where the others find this process: as its runner has arranged, or, on one machine, as it likes."""
    if MEETING not in os.environ:
        return socket.create_server(("127.0.0.1", 0)), secrets.token_hex(32)
    return socket.socket(fileno=json.loads(os.environ[MEETING])["descriptor"]), os.environ[TOKEN]


def _free_port() -> int:
    with wire.listen() as probe:
        return probe.getsockname()[1]


def _sent(end: Wire, message: Message, arrays: Arrays | None = None) -> None:
    with contextlib.suppress(OSError):  # it has ended, and its last words are still to be read
        end.send(message, arrays)


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
