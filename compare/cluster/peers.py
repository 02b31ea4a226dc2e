"""Talk to samestep on the other machines of a run, and start a contender's processes there."""

import json
import queue
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from compare.base.interface import ContenderFailed
from compare.base.process_group import MEETING, RankInfo
from compare.base.protocol import Message
from compare.cluster import wire
from compare.cluster.launch_info import TOKEN
from compare.cluster.wire import Wire

_ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class Machine:
    """A machine of a run: its number, its name, its number of visible GPUs, and its description of itself."""

    number: int
    host: str
    gpus: int
    environment: Mapping[str, Any]

    def __str__(self) -> str:
        return f"machine {self.number} ({self.host})"


class Peer:
    """The connection to samestep on another machine, which follows this one."""

    def __init__(self, machine: Machine, end: Wire) -> None:
        self.machine, self._wire = machine, end
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lost: dict[int, tuple[str, str]] = {}
        self._gone = False
        end.read(self._received, self._ended)

    def ask(self, message: Message) -> None:
        """Send a command and wait until it is done.

        Raises:
            ContenderFailed: the machine does not answer, or reports an error.
        """
        try:
            self._wire.send(message)
            answer = self._answers.get(timeout=_ANSWER_SECONDS)
        except (OSError, queue.Empty) as error:
            self._ended(error)
            raise ContenderFailed("crash", f"{self.machine} does not answer") from error
        if "error" in answer:
            raise ContenderFailed("crash", f"{self.machine}: {answer['error']}")

    def lost(self, share: int) -> tuple[str, str] | None:
        """Return the status and reason of the first process of a share that has ended there, or None."""
        lost = self._lost.get(share)
        if lost is not None:
            return lost[0], f"{self.machine}: {lost[1]}"
        return ("crash", f"{self.machine} is gone") if self._gone else None

    def close(self, code: int) -> None:
        """Tell the machine to end with an exit code."""
        with suppress(OSError):
            self._wire.send({"command": "close", "code": code})
        self._wire.close()

    def _received(self, message: Message, _: object) -> None:
        if "lost" in message:
            self._lost.setdefault(message["lost"], (message["status"], message["reason"]))
        else:
            self._answers.put(message)

    def _ended(self, _: Exception) -> None:
        self._gone = True
        self._wire.close()  # it ends when it sees that


class Share:
    """The processes of one contender on the other machines.

    Attributes:
        environment: variables that rank 0 needs so that the others find it.
        descriptor: an open socket that rank 0 must inherit.
    """

    def __init__(self, number: int, peers: Sequence[Peer]) -> None:
        self._number, self._peers = number, peers
        self._token, self._listener = secrets.token_hex(32), wire.listen()
        self.descriptor = self._listener.fileno()
        meeting = json.dumps({"machines": len(peers) + 1, "descriptor": self.descriptor})
        self.environment = {MEETING: meeting, TOKEN: self._token}

    def start(
        self,
        backend: str,
        package: str,
        device: str,
        added: Mapping[str, str],
        cache: str | None,
        local_world_size: int,
    ) -> None:
        """Start `local_world_size` processes on every other machine. They look for rank 0, which starts next.

        They train on `device`, with the variables `added`. `cache` names a folder for compiled programs. None is the
        user's own.

        Raises:
            ContenderFailed: a machine does not answer, or cannot start them.
        """
        port, world_size = self._listener.getsockname()[1], local_world_size * (len(self._peers) + 1)
        for peer in self._peers:
            first = peer.machine.number * local_world_size
            ranks = [
                asdict(RankInfo(rank, world_size, local_world_size)) for rank in range(first, first + local_world_size)
            ]
            peer.ask(
                {
                    "command": "start",
                    "share": self._number,
                    "backend": backend,
                    "package": package,
                    "device": device,
                    "cache": cache,
                    "environment": {**added, TOKEN: self._token},
                    "ranks": ranks,
                    "port": port,
                }
            )

    def lost(self) -> tuple[str, str] | None:
        """Return the status and reason of the first process that has ended by itself, or None."""
        return next(filter(None, (peer.lost(self._number) for peer in self._peers)), None)

    def close_listener(self) -> None:
        """Close this process's copy of the socket, after rank 0 has inherited it."""
        self._listener.close()

    def end(self) -> None:
        """End all processes. A machine that does not answer ends its own when it sees that this one has hung up."""
        self.close_listener()
        for peer in self._peers:
            with suppress(ContenderFailed):
                peer.ask({"command": "end", "share": self._number})
