"""Describe the processes of one contender on several devices, and the work of a backend in each of them."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

import psutil

from compare.base import process_family
from compare.base.errors import take_first_line
from compare.base.interface import Refused, RunSpec, Session
from compare.base.protocol import Message

MEETING = "SAMESTEP_MEETING"
"""The variable with the meeting point of a contender's processes on several machines, for rank 0."""
FURTHER = "SAMESTEP_FURTHER"
"""The variable with the further processes that rank 0 starts at once (`compare.worker.local_ranks.begin`)."""


@dataclass(frozen=True)
class RankInfo:
    """Says which of a contender's processes this one is.

    Attributes:
        rank: the number of this process, counted from 0 over all machines.
        world_size: the number of processes on all machines.
        local_world_size: the number of processes on each machine.
        host: the address of the machine of rank 0, as this machine knows it.
        interface: the network interface that leads to that machine, or None if there is only one machine.
    """

    rank: int
    world_size: int
    local_world_size: int
    host: str = "127.0.0.1"
    interface: str | None = None

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine."""
        return self.rank % self.local_world_size

    @property
    def machines(self) -> int:
        """The number of machines."""
        return self.world_size // self.local_world_size

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


class Opener(Protocol):
    """Opens the session of one process."""

    def __call__(self, spec: RunSpec, rank_info: RankInfo | None, /) -> Session:
        """Return the session."""
        ...


@dataclass(frozen=True)
class ProcessGroup:
    """The work of a backend in each of several processes.

    Attributes:
        package: the package of the backend.
        versions: returns the versions of its packages, which must be the same everywhere.
        join: takes the rank, `cpu` or `cuda`, and a free port on the machine of rank 0. Waits for the other processes
            by the framework's own rendezvous.
        open: opens the session of this process. Each batch that it gets is this process's part of the whole batch.
        out_of_memory: as in `compare.base.interface.Backend`.
    """

    package: str
    versions: Callable[[], dict[str, str]]
    join: Callable[[RankInfo, str, int], None]
    open: Opener
    out_of_memory: Callable[[BaseException], bool]


def count_machines() -> int:
    """Return the number of machines that this contender runs on."""
    return json.loads(os.environ[MEETING])["machines"] if MEETING in os.environ else 1


def start_command(package: str, rank_info: RankInfo, port: int) -> list[str]:
    """Return the command that starts another process of a contender. It ends with this process."""
    return process_family.make_module_command(
        package, "--rank", json.dumps(asdict(rank_info) | {"port": port, "parent": os.getpid()})
    )


def own_gpu(rank_info: RankInfo, device: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that shows a process only its own GPU, if a machine has several processes of a contender.

    Each process then calls its own GPU the first one, so all processes have the same programs. CUDA reads the variable
    at the first request for a GPU, perhaps in an import, so it must be set before the process starts.
    """
    if rank_info.local_world_size == 1 or device != "cuda":
        return {}
    return make_visible_environment(range(rank_info.local_rank, rank_info.local_rank + 1), inherited)


def make_visible_environment(devices: range, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that shows a child only its own GPUs, by their numbers among those that the user sees.

    A framework takes memory on every GPU that it sees, and would disturb another run there.
    """
    chosen = inherited.get("CUDA_VISIBLE_DEVICES")
    entries = map(str, devices) if chosen is None else chosen.split(",")[devices.start : devices.stop]
    return {"CUDA_VISIBLE_DEVICES": ",".join(entries)}


def find_interface(address: str) -> str | None:
    """Return the network interface with this address of this machine, or None."""
    plain = address.removeprefix("::ffff:").partition("%")[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == plain for entry in entries):
            return name
    return None


def describe_error(out_of_memory: Callable[[BaseException], bool], error: Exception) -> Message:
    """Return a contender's status and a reason for an error.

    `out_of_memory` is as in `compare.base.interface.Backend`.
    """
    if isinstance(error, Refused):
        return {"status": "refused", "reason": take_first_line(error)}
    status = "oom" if isinstance(error, MemoryError) or out_of_memory(error) else "crash"
    return {"status": status, "reason": f"{type(error).__name__}: {take_first_line(error)}"}


def exit_code(description: Message) -> int:
    """Return the exit code of a process that ends with an error described by `describe_error`."""
    return process_family.EXIT_CODES.get(description["status"], 1)
