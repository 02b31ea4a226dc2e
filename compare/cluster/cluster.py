"""Bring the machines of a run together, and describe them to the first one."""

import itertools
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from compare.base.arguments import LARGEST
from compare.base.interface import Refused
from compare.base.protocol import Message, ProtocolError
from compare.cluster import follower, launch_info, wire
from compare.cluster.launch_info import LaunchInfo
from compare.cluster.peers import Machine, Peer, Share
from compare.cluster.wire import Wire
from compare.machine import environment

GATHER_SECONDS = 300.0
_ACCEPT_SECONDS = 1.0


class Cluster:
    """The machines of a run. There is one, unless a launcher has started samestep on several.

    Attributes:
        here: whether this machine belongs to the run, and has its data, devices and results.
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
        """The number of machines, including this one."""
        return len(self._peers) + 1

    def device(self, name: str) -> str:
        """Return `cpu` or `cuda` for a name of `DEVICES`.

        Raises:
            Refused: the name is `cuda`, and there is no such device.
        """
        if name == "cpu":
            return "cpu"
        if environment.has_cuda():
            return "cuda"
        if name == "cuda":
            raise Refused(f"--device cuda: {environment.explain_no_cuda()}; allowed here: auto, cpu")
        return "cpu"

    def gpus(self) -> Mapping[str, int]:
        """Return the number of visible GPUs of each machine. The key is the machine's name in a message."""
        return {"": environment.count_visible_gpus()} | {f" on {other}": other.gpus for other in self.others}

    def share(self) -> Share | None:
        """Return a contender's share of the other machines, or None if there are none. Its processes start later."""
        return Share(next(self._numbers), self._peers) if self._peers else None


class PlannedCluster(Cluster):
    """The machines of a job that has not started. A plan can be checked for them, but not run."""

    here = False

    def __init__(self, count: int, gpus: int, auto: str) -> None:
        """Take the number of machines, the requested `gpus` on each (0: unknown), and the meaning of `auto` there."""
        super().__init__()
        self._count, self._gpus, self._auto = count, gpus, auto

    @property
    def count(self) -> int:
        """The number of machines."""
        return self._count

    def device(self, name: str) -> str:
        """Return `cpu` or `cuda` for a name of `DEVICES`.

        Raises:
            Refused: the name is `cpu`, and GPUs are requested.
        """
        if name == "cpu" and self._gpus:
            raise Refused(
                f"--gpus-per-node {self._gpus} with --device cpu is not allowed: no GPU would be used; allowed: 0"
            )
        return self._auto if name == "auto" else name

    def gpus(self) -> Mapping[str, int]:
        """Return the number of GPUs of each machine."""
        return {f" with --gpus-per-node {self._gpus}": self._gpus} if self._gpus else {"": LARGEST}


@contextmanager
def join(variables: Mapping[str, str]) -> Generator[Cluster]:
    """Bring the machines of a run together for the `with` block, if a launcher has started samestep on several.

    Only the first machine runs the block. The others serve it and then end the program with its exit code.

    Raises:
        Refused: as `compare.cluster.launch_info.read`. Or a machine did not come, or differs from this one.
    """
    launch = launch_info.read(variables)
    if launch is None:
        yield Cluster()
        return
    if launch.number:
        raise SystemExit(follower.follow(launch, GATHER_SECONDS, _describe_machine()))
    peers, code = list[Peer](), 3
    try:
        _gather(launch, peers)
        yield Cluster(peers)
        code = 0
    except Refused:
        code = 2
        raise
    except BaseException as error:
        code = getattr(error, "exit_code", getattr(error, "code", code)) or 0  # of typer.Exit and SystemExit
        raise
    finally:
        for peer in peers:
            peer.close(code)


def _describe_machine() -> Message:
    return {
        "host": socket.gethostname(),
        "gpus": environment.count_visible_gpus(),
        "environment": environment.describe(),
    }


def _gather(launch: LaunchInfo, peers: list[Peer]) -> None:
    try:
        listener = wire.listen(launch.port)
    except OSError as error:
        raise Refused(
            f"port {launch.port}, where the other machines look for this one, cannot be had: {error.strerror}; "
            f"allowed: the same free port on all machines in {launch_info.PORT}"
        ) from error
    own, deadline = environment.describe(), time.monotonic() + GATHER_SECONDS
    with listener:
        while len(peers) < launch.count - 1:
            end = wire.accept(listener, launch.token, _ACCEPT_SECONDS)
            if end is not None:
                peers.append(_welcome(end, launch, own, [peer.machine for peer in peers]))
            elif time.monotonic() > deadline:
                missing = sorted({*range(1, launch.count)} - {peer.machine.number for peer in peers})
                raise Refused(
                    f"machine {', '.join(map(str, missing))} of {launch.count} did not come to {launch.address} port "
                    f"{launch.port} within {GATHER_SECONDS:g} s; allowed: samestep started on all by "
                    f"{launch.launcher}, with the same {launch_info.TOKEN}"
                )
    peers.sort(key=lambda peer: peer.machine.number)


def _welcome(end: Wire, launch: LaunchInfo, own: Mapping[str, Any], present: Sequence[Machine]) -> Peer:
    try:
        greeting, _ = end.receive()
    except (EOFError, ProtocolError) as error:
        raise Refused("a machine hung up before it said which it was") from error
    machine = Machine(greeting["machine"], greeting["host"], greeting["gpus"], greeting["environment"])
    peer = Peer(machine, end)
    for name in ("samestep", "python"):
        if machine.environment[name] != own[name]:
            peer.close(2)
            raise Refused(f"{machine} has {name} {machine.environment[name]}; allowed: {own[name]}, as on this one")
    if not 0 < machine.number < launch.count or any(machine.number == other.number for other in present):
        peer.close(2)
        raise Refused(f"{machine} came twice or is none of 1 to {launch.count - 1}; allowed: each once")
    return peer
