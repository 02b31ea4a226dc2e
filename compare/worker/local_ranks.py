"""Start a contender's further processes on this machine, while this one imports its framework."""

import contextlib
import json
import os
import secrets
import socket
import subprocess

from compare.base import process_family, process_group
from compare.base.process_group import FURTHER, MEETING, RankInfo
from compare.cluster.launch_info import TOKEN


class LocalRanks:
    """The further processes of this machine, and the socket where all ranks meet.

    Args:
        package: the package of the backend.
        local_world_size: the number of processes on each machine, including this one.
        device: `cpu` or `cuda`.
    """

    def __init__(self, package: str, local_world_size: int, device: str) -> None:
        self._package, self.local_world_size, self.device = package, local_world_size, device
        self.listener, self.token = _open_meeting()
        self.kills_before, self.processes = process_family.count_kernel_kills(), dict[int, "subprocess.Popen[bytes]"]()

    @property
    def all_live(self) -> bool:
        """Whether all processes were started, and none has ended."""
        alive = all(process.poll() is None for process in self.processes.values())
        return alive and len(self.processes) == self.local_world_size - 1

    def start(self) -> None:
        """Start the processes, and end those of an earlier start.

        Raises:
            OSError: the machine cannot start another process.
        """
        self._end()
        port, size = self.listener.getsockname()[1], self.local_world_size
        world_size = process_group.count_machines() * size
        self.kills_before = process_family.count_kernel_kills()
        for rank in range(1, size):
            rank_info = RankInfo(rank, world_size, size)
            own = {TOKEN: self.token} | process_group.own_gpu(rank_info, self.device, os.environ)
            command = process_group.start_command(self._package, rank_info, port)
            self.processes[rank] = subprocess.Popen(command, env=process_family.make_child_environment(own))

    def close(self) -> None:
        """End the processes and close the socket."""
        self._end()
        self.listener.close()

    def _end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()


_begun: LocalRanks | None = None


def begin(package: str) -> None:
    """Start the further processes that the parent names in a variable, so that they import their framework meanwhile.

    If one cannot be started now, it is started when a session opens, which then reports the reason.
    """
    global _begun
    text = os.environ.pop(FURTHER, None)  # further processes must not inherit it
    if text is not None:
        with contextlib.suppress(OSError):
            _begun = LocalRanks(package, **json.loads(text))
            _begun.start()


def take_local_ranks(package: str, local_world_size: int, device: str) -> LocalRanks:
    """Return running processes: those that `begin` started if they fit and are still alive, or new ones."""
    global _begun
    ranks, _begun = _begun, None
    if ranks is not None and (ranks.local_world_size, ranks.device) != (local_world_size, device):
        ranks.close()
        ranks = None
    if ranks is None:
        ranks = LocalRanks(package, local_world_size, device)
    if not ranks.all_live:
        ranks.start()
    return ranks


def _open_meeting() -> tuple[socket.socket, str]:
    """Return the socket where the ranks meet, and their token. On several machines the parent provides both."""
    if MEETING not in os.environ:
        return socket.create_server(("127.0.0.1", 0)), secrets.token_hex(32)
    return socket.socket(fileno=json.loads(os.environ[MEETING])["descriptor"]), os.environ[TOKEN]
