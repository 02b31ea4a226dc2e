"""Control the processes of one contender that trains on several devices, from rank 0.

Rank 0 is the contender's worker. It starts the further processes of its own machine (`compare.worker.local_ranks`). On
other machines, the samestep there starts them. All connect to rank 0, meet by their framework's own means
(`ProcessGroup.join`) and then make the calls that rank 0 sends (`compare.worker.rank_worker`).
"""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare.base import process_family, process_group
from compare.base.interface import Arrays, Refused, RunSpec, Session
from compare.base.process_group import ProcessGroup, RankInfo
from compare.base.protocol import Message
from compare.cluster import wire
from compare.cluster.wire import Wire
from compare.worker.local_ranks import take_local_ranks

Ended = Callable[[Exception], None]

_LAST_WORDS_SECONDS = 5.0
_POLL_SECONDS = 0.5
_HUNG_UP: Message = {"status": "crash", "reason": "has hung up"}


class RankController:
    """The processes of one contender, seen from rank 0. They live from session to session.

    Args:
        group: the work of the backend in each process.
        local_world_size: the number of processes on each machine, including this one.
        device: `cpu` or `cuda`.

    Raises:
        Refused: there are too few devices, or another machine has other versions.
        RuntimeError, MemoryError: another process did not come up.
    """

    def __init__(self, group: ProcessGroup, local_world_size: int, device: str) -> None:
        self._group, self.world_size = group, process_group.count_machines() * local_world_size
        self._session: Session | None = None
        self._wires: dict[int, Wire] = {}
        self._answers: queue.SimpleQueue[tuple[int, Message, Arrays]] = queue.SimpleQueue()
        self._last_words: dict[int, Message] = {}
        local = take_local_ranks(group.package, local_world_size, device)
        self._kills_before, self._locals = local.kills_before, local.processes
        self._gather(local.listener, local.token)
        interface = _find_interface(self._wires, local_world_size)
        self._rank_info = RankInfo(0, self.world_size, local_world_size, interface=interface)
        port = _find_free_port()
        for end in self._wires.values():
            _send(end, {"join": port, "device": device})
        group.join(self._rank_info, device, port)

    def open(self, spec: RunSpec) -> Session:
        """Open a session in every process, and return this process's session."""

        def open_here() -> Any:
            self._session = None  # frees its memory before the next session opens
            self._session = self._group.open(spec, self._rank_info)

        self._call_together("open", [(spec,)] * (self.world_size - 1), open_here)
        assert self._session is not None
        return self._session

    def close_session(self) -> None:
        """Close the session in every process and free its memory."""

        def close_here() -> None:
            self._session = None

        self._call_together("close", [()] * (self.world_size - 1), close_here)

    def call_all(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of the session in every process, and return the values by rank."""
        others = [arguments] * (self.world_size - 1)
        return self._call_together(name, others, lambda: getattr(self._session, name)(*arguments))

    def call_each(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Call a method in every process, each with its own argument, and return the values by rank."""
        others = [(argument,) for argument in arguments[1:]]
        return self._call_together(name, others, lambda: getattr(self._session, name)(arguments[0]))

    def _call_together(self, name: str, arguments: Sequence[tuple[Any, ...]], here: Callable[[], Any]) -> list[Any]:
        for rank, values in enumerate(arguments, start=1):
            arrays: Arrays = {}
            _send(self._wires[rank], {"call": name, "arguments": wire.pack(values, arrays)}, arrays)
        try:
            own = here()
        except Exception:
            self._collect(_LAST_WORDS_SECONDS)  # a rank that failed first is the reason for the failure here
            raise
        return [own, *self._collect(None)]

    def _collect(self, seconds: float | None) -> list[Any]:
        """Return the answers of the other ranks. Wait for all of them, or at most `seconds`.

        Raises:
            MemoryError, RuntimeError, Refused: a rank reports that it has failed.
        """
        end, values = None if seconds is None else time.monotonic() + seconds, dict[int, Any]()
        while len(values) < self.world_size - 1:
            try:
                left = None if end is None else max(0.0, end - time.monotonic())
                rank, message, arrays = self._answers.get(timeout=left)
            except queue.Empty:
                break
            values[rank] = self._read_answer(rank, message, arrays)
        return [values.get(rank) for rank in range(1, self.world_size)]

    def _read_answer(self, rank: int, message: Message, arrays: Arrays) -> Any:
        if "value" in message:
            return wire.unpack(message["value"], arrays)
        if message == _HUNG_UP:
            time.sleep(_LAST_WORDS_SECONDS)  # the samestep that started it may know more
        raise self._make_error(rank, message)

    def _make_error(self, rank: int, message: Message) -> Exception:
        kind = {"oom": MemoryError, "refused": Refused}.get(str(message.get("status")), RuntimeError)
        return kind(f"rank {rank} of {self.world_size}: {message.get('reason')}")

    def _gather(self, listener: socket.socket, token: str) -> None:
        """Wait until every rank has connected. The parent's deadline ends the wait for a missing one."""
        own = self._group.versions()
        while len(self._wires) < self.world_size - 1:
            for rank, process in self._locals.items():
                if rank not in self._wires and process.poll() is not None:
                    raise self._make_error(rank, self._explain_end(process))
            end = wire.accept(listener, token, _POLL_SECONDS)
            if end is not None:
                greeting, _ = end.receive()
                if greeting["versions"] != own:
                    raise Refused(
                        f"rank {greeting['rank']} of {self.world_size}, on {greeting['host']}, has "
                        f"{_list_versions(greeting['versions'])}; allowed: {_list_versions(own)}, as on the first "
                        "machine"
                    )
                self._wires[greeting["rank"]] = end
        listener.close()
        for rank, end in self._wires.items():
            end.read(self._make_receiver(rank), self._make_ender(rank))
        for rank, process in self._locals.items():
            threading.Thread(target=self._watch, args=(process, self._make_ender(rank)), daemon=True).start()

    def _explain_end(self, process: "subprocess.Popen[bytes]") -> Message:
        """Return why a process of this machine has ended, or is about to end."""
        try:
            code = process.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            return _HUNG_UP
        explanation = process_family.explain_exit_code(code, self._kills_before)
        return dict(zip(("status", "reason"), explanation, strict=True))

    @staticmethod
    def _watch(process: "subprocess.Popen[bytes]", ended: Ended) -> None:
        """Notice the end of a process even if a fork of it keeps its connection open."""
        process.wait()
        time.sleep(_LAST_WORDS_SECONDS)  # its last words come first
        ended(EOFError())

    def _make_receiver(self, rank: int) -> wire.Received:
        def receive(message: Message, arrays: Arrays) -> None:
            if "reason" in message:
                self._last_words[rank] = message
            self._answers.put((rank, message, arrays))

        return receive

    def _make_ender(self, rank: int) -> Ended:
        def end(error: Exception) -> None:
            """End this process, which may wait for that rank in an exchange, after some time to report the reason."""
            if not isinstance(error, EOFError):
                description = process_group.describe_error(self._group.out_of_memory, error)
            else:
                description = self._explain_end(self._locals[rank]) if rank in self._locals else _HUNG_UP
            self._answers.put((rank, description, {}))
            time.sleep(2 * _LAST_WORDS_SECONDS)
            description = self._last_words.get(rank, description)
            sys.stderr.write(f"{self._make_error(rank, description)}\n")
            sys.stderr.flush()
            os._exit(process_group.exit_code(description))

        return end


def _find_interface(wires: Mapping[int, Wire], local_world_size: int) -> str | None:
    """Return the interface over which the first rank of another machine connected, or None on one machine."""
    return process_group.find_interface(wires[local_world_size].address) if local_world_size in wires else None


def _find_free_port() -> int:
    with wire.listen() as probe:
        return probe.getsockname()[1]


def _send(end: Wire, message: Message, arrays: Arrays | None = None) -> None:
    with contextlib.suppress(OSError):  # the rank has ended, and its last words will be read
        end.send(message, arrays)


def _list_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
