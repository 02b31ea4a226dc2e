"""What the tests of the runner and of the children share: scripts, small plans, and whether processes are gone."""

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from compare.base import process_family
from compare.execution import record_certificates, round_validity
from compare.machine import cpu
from compare.reproduce import recompute
from compare.settings import plan
from compare.settings.options import Settings
from compare.settings.plan import Plan
from tests.fakebackend import entries, fork_server

ROOT = Path(__file__).resolve().parents[2]
GONE_WITHIN = DEADLINE = 120.0
"""Seconds until a test fails for a process that stays, or for a command that does not end: generous, for a machine with
other work. Only a test that fails waits so long."""

_CACHES = itertools.count()
_LIST_FAMILY = cpu.list_family

Script = Callable[..., Path]


def environment(folder: Path, behaviours: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables that script the fake backends of a child process and let it find them."""
    # One thread: BLAS would start a thread a core in each of many processes.
    script = json.dumps({"folder": str(folder), **behaviours})
    # A new cache for each run: no run finds a certificate of another one, and none is the user's.
    cache = str(folder / f"cache-{next(_CACHES)}")
    return {
        "SAMESTEP_FAKE": script,
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
        "XDG_CACHE_HOME": cache,
    }


def register(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    behaviours: Mapping[str, Mapping[str, Any]] | None = None,
    children: int = 1,
) -> None:
    """Let this process know the fake backends, scripted by name. `children` of each make a certificate."""
    for table, name, value in entries():
        monkeypatch.setitem(table, name, value)
    monkeypatch.setattr(process_family, "subprocess", fork_server.Subprocess())
    # Scripted time does not mind other programs, and passes in no window.
    monkeypatch.setattr(round_validity, "FOREIGN_CORES", math.inf)
    monkeypatch.setattr(recompute, "WINDOW_ROUNDING", math.inf)
    monkeypatch.setattr("compare.execution.jobs._POLL_SECONDS", 0.004)  # scripted children answer at once
    # psutil reads all processes of the machine to find a child's family. Scripted children have none that works.
    monkeypatch.setattr(cpu, "list_family", lambda pid: _LIST_FAMILY(pid) if pid == os.getpid() else [pid])
    # On every machine the same, because scripts number a backend's processes.
    monkeypatch.setattr(cpu, "count_usable_cores", lambda: 2 * children)
    monkeypatch.setitem(record_certificates.MOST_CHILDREN, "cpu", children)
    for name, value in environment(folder, behaviours or {}).items():
        monkeypatch.setenv(name, value)


def make(out: Path, texts: Sequence[str], **changes: Any) -> Plan:
    """Return a plan small enough for a test: two rounds, one epoch."""
    values: dict[str, Any] = {"rounds": 2, "epochs": 1, "device": "cpu", "deadline": DEADLINE} | changes
    of_plan = {name: values.pop(name) for name in ("dataset", "cluster") if name in values}
    return plan.make(Settings(contenders=texts, out=out, **values), **of_plan)


def deadline(fault: str) -> float:
    """Return the seconds for a test of a fault: few for one that hangs, which waits for all of them."""
    return 4.0 if fault == "hang" else DEADLINE


def started(folder: Path) -> list[int]:
    """Return the process ids of every fake process and its children that has been started with logs in `folder`."""
    files = [*folder.glob("*.pid"), *folder.glob("grandchildren.log")]
    return [int(pid) for file in files for pid in file.read_text().split()]


def remaining(pids: Sequence[int], within: float = DEADLINE) -> list[int]:
    """Return those processes that still run after at most `within` seconds. A zombie does not run."""
    end = time.monotonic() + within
    while (alive := [pid for pid in pids if _runs(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    return alive


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], Any], seconds: float = DEADLINE) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came to hold"
        time.sleep(0.02)
