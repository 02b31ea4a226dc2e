"""Run a campaign on several GPUs of this machine: one process for each GPU, which takes one cell after the other.

Each process sees one GPU and has its share of the cores. The locks of the store keep two from taking the same cell.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from compare.machine import nvml
from compare.studies.cell_store import PENDING, CellState
from compare.studies.study import OnChange, Study

WORKER = "SAMESTEP_CAMPAIGN_WORKER"
"""The variable that tells a process that it is one of several. Its value is the parent's number, or `ARRAY`."""
ARRAY = "array"
"""The parent is on another machine, so the process does not end with it."""

_POLL_SECONDS = 2.0
_SAMESTEP = str(Path(__file__).resolve().parents[2])


def is_worker() -> bool:
    """Tell whether this process is one of several, which run cells and write no report."""
    return WORKER in os.environ


def end_with_parent() -> None:
    """Let this worker end when its parent is gone, also after SIGKILL."""
    if os.environ[WORKER] == ARRAY:
        return
    parent = int(os.environ[WORKER])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def count_workers(states: Sequence[CellState]) -> int:
    """Return how many GPUs may each take a cell: 1 if there is one, or the cells do not train on one GPU each."""
    if is_worker():
        return 1
    waiting = [state.cell for state in states if state.status == PENDING]
    if not all(cell.device == "cuda" and cell.settings.devices == 1 for cell in waiting):
        return 1
    return max(1, min(len(nvml.list_visible()), len(waiting)))


def run(study: Study, on_change: OnChange, count: int, arguments: Sequence[str]) -> None:
    """Run cells in `count` processes until all of these have ended. `on_change` gets each cell that one finishes.

    A cell that no process finishes stays pending.

    Args:
        study: the cells and their store.
        on_change: gets new states.
        count: from `count_workers`.
        arguments: the command line of the campaign, after the program's name.
    """
    workers = [_start(gpu, index, count, arguments) for index, gpu in enumerate(nvml.list_visible()[:count])]
    known = {state.cell.name for state in study.find_states() if state.status != PENDING}
    try:
        while True:
            has_ended = all(worker.poll() is not None for worker in workers)
            for state in study.find_states():
                if state.status != PENDING and state.cell.name not in known:
                    known.add(state.cell.name)
                    on_change(state)
            if has_ended:
                return
            time.sleep(_POLL_SECONDS)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in workers:
            worker.wait()


def make_command(parent: str, arguments: Sequence[str]) -> list[str]:
    """Return the command of a worker. `parent` is the value of `WORKER`, `arguments` are those of samestep."""
    # The folder of samestep comes last: it may be one of installed packages, and they must not hide Python's modules.
    code = (
        f"import os, sys; os.environ[{WORKER!r}] = {parent!r}; sys.path.append({_SAMESTEP!r}); "
        "from compare.__main__ import main; main()"
    )
    return [sys.executable, "-P", "-c", code, *arguments]


def _start(gpu: str, index: int, count: int, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
    command = make_command(str(os.getpid()), arguments)
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    with suppress(psutil.Error, OSError, AttributeError):  # macOS has no affinity
        cores = psutil.Process().cpu_affinity() or []
        psutil.Process(worker.pid).cpu_affinity(cores[index::count] or cores)
    return worker
