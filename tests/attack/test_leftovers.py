"""What a killed run leaves in the temporary folder is removed by a later one, and nothing else is."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from compare.base import scratch
from tests.fakebackend import plans

_USES = """
import pathlib, sys, time
from compare.base import scratch
with scratch.open_folder() as folder:
    (folder / "cache").mkdir()
    (folder / "cache" / "program.so").write_bytes(bytes(1000))
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def use() -> "tuple[subprocess.Popen[str], Path]":
    """Start a process that uses a folder until it is killed."""
    variables = os.environ | {"PYTHONPATH": str(plans.ROOT)}
    process = subprocess.Popen([sys.executable, "-c", _USES], env=variables, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_is_private_and_goes_with_its_run(temporary: Path) -> None:
    with scratch.open_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "link").symlink_to(temporary)
        (folder / "file").touch()
    assert list(temporary.iterdir()) == []


def test_a_later_run_removes_what_a_killed_run_left_and_not_what_another_uses(temporary: Path) -> None:
    (killed, left), (running, used) = use(), use()
    killed.kill()
    killed.communicate()
    for name in ("samestep-result-1", "samestep-mine"):  # a result that was kept, and a folder of somebody else
        (temporary / name).mkdir()
        (temporary / name / "result.json").touch()
    (temporary / "samestep-file").touch()
    (temporary / "samestep-link").symlink_to(used)
    with scratch.open_folder():
        assert not left.exists()
        assert (used / "cache" / "program.so").exists()
    running.kill()
    running.communicate()
    scratch.remove_leftovers()
    names = {path.name for path in temporary.iterdir()}
    assert names == {"samestep-result-1", "samestep-mine", "samestep-file", "samestep-link"}


def test_a_killed_run_leaves_no_folder_and_no_process(temporary: Path) -> None:
    process, folder = use()
    assert folder.exists()
    process.kill()
    process.communicate()
    plans.until(lambda: not folder.exists(), 10)
    plans.until(lambda: not [each for each in psutil.process_iter(["cmdline"]) if str(folder) in str(each.info)], 10)
    assert list(temporary.iterdir()) == []


def test_a_signal_during_the_clean_up_waits_for_its_end(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    remove = scratch._remove

    def interrupted(folder: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(folder)

    monkeypatch.setattr(scratch, "_remove", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch.open_folder():
        pass
    signal.signal(signal.SIGINT, before)
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_many_signals_at_once_leave_nothing(tmp_path: Path, temporary: Path, first: signal.Signals) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by a script's background
    variables = os.environ | plans.environment(tmp_path, {"fake": {"fault": "grandchild-hang", "at": "open"}})
    arguments = ["-m", "tests.fakebackend.program", "compare", "fake", "other", "--device", "cpu", "--epochs", "1"]
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    plans.until(lambda: (tmp_path / "grandchildren.log").exists())
    assert list(temporary.glob("samestep-*"))
    for number in (first, *(signal.SIGINT, signal.SIGTERM) * 50):
        process.send_signal(number)
    error = process.communicate(timeout=plans.DEADLINE)[1]
    # The kernel hands over signals that wait together by number, and not in the order in which they came.
    assert process.returncode in (128 + signal.SIGINT, 128 + first)
    assert "Traceback" not in error
    assert error.count("interrupted") == 1
    assert plans.remaining(plans.started(tmp_path)) == []
    assert list(temporary.iterdir()) == []
