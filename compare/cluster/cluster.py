"""The other machines of a run, as the first one sees them: who is there, and their share of a contender's processes."""

import itertools
import json
import queue
import secrets
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from compare.base.interface import ContenderFailed, Refused
from compare.base.process_group import MEETING, RankInfo
from compare.base.protocol import Message, ProtocolError
from compare.cluster import follower, launch_info, wire
from compare.cluster.launch_info import TOKEN, LaunchInfo
from compare.cluster.wire import Wire
from compare.machine import environment

GATHER_SECONDS = 300.0
_ACCEPT_SECONDS, _ANSWER_SECONDS = 1.0, 30.0


@dataclass(frozen=True)
class Machine:
    """One machine of a run: its number, its name, how many GPUs samestep sees there, and all else it says of itself."""

    number: int
    host: str
    gpus: int
    environment: Mapping[str, Any]

    def __str__(self) -> str:
        return f"machine {self.number} ({self.host})"


class Peer:
    """The samestep that follows this one on another machine."""

    def __init__(self, machine: Machine, end: Wire) -> None:
        self.machine, self._wire = machine, end
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lost: dict[int, tuple[str, str]] = {}
        self._gone = False
        end.read(self._received, self._ended)

    def ask(self, message: Message) -> None:
        """Have something done, and wait until it is.

        Raises:
            ContenderFailed: the machine does not answer, or could not do it.
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
        """Return the status and reason of the first process of a share that has ended there, if one has."""
        found = self._lost.get(share)
        if found is not None:
            return found[0], f"{self.machine}: {found[1]}"
        return ("crash", f"{self.machine} is gone") if self._gone else None

    def close(self, code: int) -> None:
        """Let it end with an exit code."""
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
        self._wire.close()  # it ends when it notices


class Share:
    """What of one contender's processes runs on the other machines.

    Attributes:
        environment: variables that the first process needs to be found by the others.
        descriptor: an open file that it must inherit.
    """

    def __init__(self, number: int, peers: Sequence[Peer]) -> None:
        self._number, self._peers = number, peers
        self._token, self._listener = secrets.token_hex(32), wire.listen()
        self.descriptor = self._listener.fileno()
        meeting = json.dumps({"machines": len(peers) + 1, "descriptor": self.descriptor})
        self.environment = {MEETING: meeting, TOKEN: self._token}

    def start(
        self, backend: str, package: str, device: str, added: Mapping[str, str], cache: str | None, here: int
    ) -> None:
        """Start `here` processes on every other machine; they look for the first, which is started next.

        They train on a `device`; `added` are their variables, `cache` names a folder for compiled programs (None: the
        user's own).

        Raises:
            ContenderFailed: a machine does not answer, or could not start them.
        """
        port, count = self._listener.getsockname()[1], here * (len(self._peers) + 1)
        for peer in self._peers:
            first = peer.machine.number * here
            ranks = [asdict(RankInfo(rank, count, here)) for rank in range(first, first + here)]
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
        """Return the status and reason of the first process that has ended by itself, if one has."""
        return next(filter(None, (peer.lost(self._number) for peer in self._peers)), None)

    def inherited(self) -> None:
        """Let the first process alone have the socket from now on."""
        self._listener.close()

    def end(self) -> None:
        """End all of it; a machine that does not answer ends its part when it sees that this one is gone."""
        self.inherited()
        for peer in self._peers:
            with suppress(ContenderFailed):
                peer.ask({"command": "end", "share": self._number})


class Cluster:
    """The other machines of a run; none, unless a launcher has started samestep on several.

    Attributes:
        here: whether this machine is one of the run's, so that it has its data, its devices and its results.
    """

    here = True

    def __init__(self, peers: Sequence[Peer] = ()) -> None:
        self._peers, self._numbers = peers, itertools.count()

    @property
    def others(self) -> tuple[Machine, ...]:
        """The machines that follow this one."""
        return tuple(peer.machine for peer in self._peers)

    @property
    def count(self) -> int:
        """How many machines there are, this one included."""
        return len(self._peers) + 1

    def device(self, name: str) -> str:
        """Return the device, `cpu` or `cuda`, that is meant by a name out of `DEVICES`.

        Raises:
            Refused: `cuda`, of which there is none.
        """
        if name == "cpu":
            return "cpu"
        if environment.has_cuda():
            return "cuda"
        if name == "cuda":
            raise Refused(f"--device cuda: {environment.explain_no_cuda()}; allowed here: auto, cpu")
        return "cpu"

    def gpus(self) -> Mapping[str, int]:
        """Return how many GPUs samestep sees on each machine, by the words with which a message says where."""
        return {"": environment.count_visible_gpus()} | {f" on {other}": other.gpus for other in self.others}

    def share(self) -> Share | None:
        """Return one contender's share of the other machines, yet to be started; None where there are none."""
        return Share(next(self._numbers), self._peers) if self._peers else None


@contextmanager
def join(variables: Mapping[str, str]) -> Generator[Cluster]:
    """Bring the machines of a run together for the `with` block, if a launcher has started samestep on several.

    The first machine carries out the block, with the others at its service; there the block is left out: they serve,
    and end the program with the exit code that the first one ends with.

    Raises:
        Refused: by `compare.cluster.launch_info.read`; a machine did not come, or is not like this one.
    """
    here = launch_info.read(variables)
    if here is None:
        yield Cluster()
        return
    if here.number:
        raise SystemExit(follower.follow(here, GATHER_SECONDS, _said()))
    peers, code = list[Peer](), 3
    try:
        _gather(here, peers)
        yield Cluster(peers)
        code = 0
    except Refused:
        code = 2
        raise
    except BaseException as error:
        code = getattr(error, "exit_code", getattr(error, "code", code)) or 0  # typer.Exit's and SystemExit's
        raise
    finally:
        for peer in peers:
            peer.close(code)


def _said() -> Message:
    return {
        "host": socket.gethostname(),
        "gpus": environment.count_visible_gpus(),
        "environment": environment.describe(),
    }


def _gather(here: LaunchInfo, peers: list[Peer]) -> None:
    try:
        listener = wire.listen(here.port)
    except OSError as error:
        raise Refused(
            f"port {here.port}, where the other machines look for this one, cannot be had: {error.strerror}; "
            f"allowed: the same free port on all machines in {launch_info.PORT}"
        ) from error
    own, end = environment.describe(), time.monotonic() + GATHER_SECONDS
    with listener:
        while len(peers) < here.count - 1:
            came = wire.accept(listener, here.token, _ACCEPT_SECONDS)
            if came is not None:
                peers.append(_welcomed(came, here, own, [peer.machine for peer in peers]))
            elif time.monotonic() > end:
                missing = sorted({*range(1, here.count)} - {peer.machine.number for peer in peers})
                raise Refused(
                    f"machine {', '.join(map(str, missing))} of {here.count} did not come to {here.address} port "
                    f"{here.port} within {GATHER_SECONDS:g} s; allowed: samestep started on all by {here.launcher}, "
                    f"with the same {launch_info.TOKEN}"
                )
    peers.sort(key=lambda peer: peer.machine.number)


def _welcomed(came: Wire, here: LaunchInfo, own: Mapping[str, Any], there: Sequence[Machine]) -> Peer:
    try:
        hello, _ = came.receive()
    except (EOFError, ProtocolError) as error:
        raise Refused("a machine hung up before it said which it was") from error
    machine = Machine(hello["machine"], hello["host"], hello["gpus"], hello["environment"])
    peer = Peer(machine, came)
    for name in ("samestep", "python"):
        if machine.environment[name] != own[name]:
            peer.close(2)
            raise Refused(f"{machine} has {name} {machine.environment[name]}; allowed: {own[name]}, as on this one")
    if not 0 < machine.number < here.count or any(machine.number == each.number for each in there):
        peer.close(2)
        raise Refused(f"{machine} came twice or is none of 1 to {here.count - 1}; allowed: each once")
    return peer
