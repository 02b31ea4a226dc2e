"""A backend in two processes. The second one ends in its first step.

The variable SAMESTEP_RANKS holds JSON:
- `second` says how that process ends: `out of memory`, `refuse`, `exit`, `kill`, or `kernel` for the kernel's own kill.
- `first` says what the other process does in that step: `wait` in an exchange, `fail` in it, or `end` without one.
- `folder` holds the kernel's count of kills, and a file for every session that has been closed.
"""

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compare.base import process_family
from compare.base.interface import (
    Arrays,
    Batch,
    Memory,
    Refused,
    RunSpec,
)
from compare.base.process_group import ProcessGroup, RankInfo
from compare.worker import rank_controller, server
from compare.worker.distributed_session import DistributedSession
from compare.worker.rank_controller import RankController

SCRIPT = json.loads(os.environ["SAMESTEP_RANKS"])
KILLS = Path(SCRIPT["folder"]) / "oom_kill"
PACKAGE = "tests.fakebackend.ranks"


class RankSession:
    steps_per_dispatch = 1

    def __init__(self, spec: RunSpec, place: RankInfo | None) -> None:
        assert place is not None
        self._rank = place.rank

    def signature(self) -> dict[str, tuple[int, ...]]:
        return {"dense.kernel": (2, 2)}

    def assign(self, arrays: Arrays) -> None: ...

    def feed(self, batches: Sequence[Batch]) -> None: ...

    def run(self, steps: int) -> None:
        if self._rank:
            _end(SCRIPT["second"])
        elif SCRIPT["first"] == "wait":
            time.sleep(60)
        elif SCRIPT["first"] == "fail":
            time.sleep(0.1)  # the exchange fails once the other has ended
            raise ConnectionError("closed by peer")

    def wait(self) -> None: ...

    def inspect(self, batch: Batch) -> Arrays:
        of_part = np.full(len(batch.labels), self._rank)
        return {"activation/a": of_part, "logits": of_part, "loss": np.array(self._rank), "gradient/a": np.zeros(9)}

    def memory(self) -> Memory:
        return Memory(live_peak_bytes=10 + self._rank, pool_peak_bytes=20 - self._rank, absent={"static_bytes": "fake"})

    def __del__(self) -> None:
        (Path(SCRIPT["folder"]) / f"closed-{self._rank}").touch()


class RankBackend:
    name = "crew"

    def versions(self) -> dict[str, str]:
        return {"crew": "1"}

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def open(self, spec: RunSpec) -> Any:
        return DistributedSession(spec, RankController(PROCESS_GROUP, 2, "cpu"), lockstep=False)


def _end(how: str) -> None:
    if how == "out of memory":
        raise MemoryError("no more of it")
    if how == "refuse":
        raise Refused("no such thing")
    if how == "exit":
        os._exit(7)
    if how == "kernel":
        KILLS.touch()
    os.kill(os.getpid(), signal.SIGKILL)


BACKEND: Any = RankBackend()
SESSION: Any = RankSession
PROCESS_GROUP = ProcessGroup(PACKAGE, BACKEND.versions, lambda *_: None, SESSION, BACKEND.out_of_memory)

if __name__ == "__main__":
    process_family.count_kernel_kills = lambda: int(KILLS.exists())
    rank_controller._LAST_WORDS_SECONDS = 0.3
    server.serve(BACKEND, process_group=PROCESS_GROUP)
