"""A run's own folder for temporary files, with mode 0700. A later run removes it if the run was killed."""

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from compare.base.interruptions import HeldSignals

PREFIX = "samestep-"
LOCK = "lock"
"""The file in the folder that a run holds locked while it uses the folder."""

_SWEEP = 'read nothing; for turn in 1 2 3 4 5; do sleep 1; rm -rf -- "$1" && exit; done'


@contextmanager
def open_folder() -> Generator[Path]:
    """Make a folder for the `with` block, and remove it afterwards. Signals wait until it is gone.

    First remove the folders of runs that were killed.
    """
    remove_leftovers()
    path, lock = _make()
    sweeper, signals = _start_sweeper(path), HeldSignals()
    try:
        yield path
    finally:
        with signals:
            signals.hold()
            _remove(path)
            os.close(lock)
            _end_sweeper(sweeper)
    if signals.pending is not None:
        raise signals.pending


def remove_leftovers() -> None:
    """Remove this user's folders that no run holds locked any more, however young they are."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # held by its run, gone meanwhile, or no run's
            state = path.lstat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid():
                lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(path)
                finally:
                    os.close(lock)


def _start_sweeper(folder: Path) -> "subprocess.Popen[bytes] | None":
    """Start a shell that waits for the end of this process and then removes the folder. So a kill leaves nothing.

    The children of a killed run write for up to a second longer. If no process can be started, a later run removes the
    folder.
    """
    arguments = ["/bin/sh", "-c", _SWEEP, "samestep", str(folder)]
    with suppress(OSError):
        return subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return None


def _end_sweeper(sweeper: "subprocess.Popen[bytes] | None") -> None:
    if sweeper is not None:
        sweeper.kill()
        sweeper.wait()
        if sweeper.stdin is not None:
            sweeper.stdin.close()


def _make() -> tuple[Path, int]:
    """Make a folder. Return it and the descriptor of its locked file."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: nobody removes the folder of a killed run
            (path / LOCK).unlink()
            return path, lock
        if os.fstat(lock).st_nlink:
            return path, lock
        os.close(lock)  # another run has locked it first and has removed the folder


def _remove(folder: Path) -> None:
    """Remove a folder, and its lock only after everything else, so that a later run can finish the work."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            with suppress(OSError):
                path.unlink()
    if {path.name for path in folder.iterdir()} <= {LOCK}:
        shutil.rmtree(folder, ignore_errors=True)
