"""What a killed run leaves in the temporary folder is removed by a later one, and nothing else is."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from compare.base import scratch
from tests.fakebackend import plans

_USES = """
import pathlib, sys, time
from compare.base import scratch
with scratch.folder() as folder:
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
    with scratch.folder() as folder:
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
    with scratch.folder():
        assert not left.exists()
        assert (used / "cache" / "program.so").exists()
    running.kill()
    running.communicate()
    scratch.remove_leftovers()
    names = {path.name for path in temporary.iterdir()}
    assert names == {"samestep-result-1", "samestep-mine", "samestep-file", "samestep-link"}


def test_a_signal_during_the_clean_up_waits_for_its_end(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    remove = scratch._remove

    def interrupted(folder: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(folder)

    monkeypatch.setattr(scratch, "_remove", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch.folder():
        pass
    signal.signal(signal.SIGINT, before)
    assert list(temporary.iterdir()) == []
