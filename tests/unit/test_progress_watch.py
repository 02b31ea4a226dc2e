"""A child that waits or spins for ever is a stall. One that computes, allocates or writes its cache is not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compare.base.interface import ContenderFailed
from compare.execution import progress_watch
from compare.execution.child import Child
from compare.execution.progress_watch import ProgressWatch
from tests.fakebackend import plans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

WAITS = "import time; time.sleep(600)"
SPINS = "while True: pass"
ALLOCATES = "import mmap\nwhile True: mmap.mmap(-1, 4096).write(b'1')"
COMPILES = "import subprocess\nwhile True: subprocess.run(['python3', '-c', 'sum(range(10 ** 6))'])"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_watch, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(progress_watch, "STALL_SECONDS", 1.0)


@contextmanager
def watched(code: str, **variables: str) -> Iterator[tuple[ProgressWatch, int]]:
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.3)  # Python has started
        yield ProgressWatch(process.pid, variables), process.pid
    finally:
        process.kill()
        process.wait()


def find_stall(watch: ProgressWatch, seconds: float) -> str | None:
    end, stall = time.monotonic() + seconds, None
    while stall is None and time.monotonic() < end:
        time.sleep(0.05)
        stall = watch.find_stall()
    return stall


@pytest.mark.parametrize("code", [WAITS, SPINS])
def test_a_process_that_waits_or_spins_stalls(code: str) -> None:
    with watched(code, OMP_THREAD_LIMIT="1") as (watch, _):
        stall = find_stall(watch, 20)
    assert stall is not None
    assert "likely cause: OMP_THREAD_LIMIT=1" in stall


@pytest.mark.parametrize("code", [ALLOCATES, COMPILES])
def test_a_process_that_works_does_not_stall(code: str) -> None:
    with watched(code) as (watch, _):
        assert find_stall(watch, 2.5) is None


def test_new_cache_files_are_progress(tmp_path: Path) -> None:
    with watched(WAITS, JAX_COMPILATION_CACHE_DIR=str(tmp_path)) as (watch, _):
        for number in range(25):
            (tmp_path / f"{number}").touch()
            assert find_stall(watch, 0.1) is None
        assert find_stall(watch, 20) is not None


def test_a_stopped_process_is_named() -> None:
    with watched(WAITS) as (watch, pid):
        os.kill(pid, signal.SIGSTOP)
        assert "it is stopped" in (find_stall(watch, 20) or "")


def test_a_phase_without_progress_ends_as_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = plans.environment(tmp_path, {"fake": {"fault": "hang", "at": "start"}})
    child = Child("fake", "tests.fakebackend", environment, tmp_path)
    with pytest.raises(ContenderFailed, match="starting made no progress for") as failure:
        child.greet()
    assert failure.value.status == "timeout"
    assert plans.remaining(plans.started(tmp_path)) == []
