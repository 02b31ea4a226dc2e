"""What one contender's several processes know of each other before they talk, and what a backend does in each."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

import psutil

from compare.base import process_family
from compare.base.interface import Refused, RunSpec, Session, first_line
from compare.base.protocol import Message

MEETING = "SAMESTEP_MEETING"
"""The variable that tells a contender's first process where the others, on several machines, will find it."""
FURTHER = "SAMESTEP_FURTHER"
"""The variable that tells it which further processes it is to start at once (`compare.worker.rank_controller.begin`)."""


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
        """Return it."""
        ...


@dataclass(frozen=True)
class ProcessGroup:
    """What a backend does in each of several processes.

    Attributes:
        package: of the backend.
        versions: those of the packages, which must be the same everywhere.
        join: given the place, `cpu` or `cuda`, and a free port of the first process's machine, waits for the others by
            the framework's own rendezvous.
        open: opens this process's session; each batch that it is fed is this process's part of the whole.
        out_of_memory: that of `compare.base.interface.Backend`.
    """

    package: str
    versions: Callable[[], dict[str, str]]
    join: Callable[[RankInfo, str, int], None]
    open: Opener
    out_of_memory: Callable[[BaseException], bool]


def machines() -> int:
    """Return over how many machines this contender is spread."""
    return json.loads(os.environ[MEETING])["machines"] if MEETING in os.environ else 1


def start_command(package: str, rank_info: RankInfo, port: int) -> list[str]:
    """Return the command by which this process starts one more of a contender's, which ends with this one."""
    return process_family.module_command(
        package, "--rank", json.dumps(asdict(rank_info) | {"port": port, "parent": os.getpid()})
    )


def own_gpu(rank_info: RankInfo, device: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that shows a process its own GPU alone, where a machine has several of a contender's.

    Each calls its own the first, so that all have the same programs. CUDA reads the variable when whatever a process
    imports first asks for a GPU, so it is set before the process starts. On a CPU all see the same, GPUs or none.
    """
    if rank_info.local_world_size == 1 or device != "cuda":
        return {}
    return visible_environment(range(rank_info.local_rank, rank_info.local_rank + 1), inherited)


def visible_environment(devices: range, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that shows a child the GPUs that it trains on, by their numbers of those that the user sees.

    A framework takes memory on every GPU that it sees, and is a foreign process to what another run times there.
    """
    chosen = inherited.get("CUDA_VISIBLE_DEVICES")
    entries = map(str, devices) if chosen is None else chosen.split(",")[devices.start : devices.stop]
    return {"CUDA_VISIBLE_DEVICES": ",".join(entries)}


def interface_of(address: str) -> str | None:
    """Return the network interface that has an address of this machine's (None where none has)."""
    plain = address.removeprefix("::ffff:").partition("%")[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == plain for entry in entries):
            return name
    return None


def last_words(out_of_memory: Callable[[BaseException], bool], error: Exception) -> Message:
    """Return what a process says of its error: a contender's status and a reason.

    `out_of_memory` is that of `compare.base.interface.Backend`.
    """
    if isinstance(error, Refused):
        return {"status": "refused", "reason": first_line(error)}
    status = "oom" if isinstance(error, MemoryError) or out_of_memory(error) else "crash"
    return {"status": status, "reason": f"{type(error).__name__}: {first_line(error)}"}


def exit_code(words: Message) -> int:
    """Return the exit code of a process that ends with these `last_words`, its own or another's."""
    return process_family.EXIT_CODES.get(words["status"], 1)
