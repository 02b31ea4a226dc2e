"""Locks in the store, so that two runs do not do the same work or disturb each other.

A lock ends with its process, also after SIGKILL. On a shared disk it holds between machines if the disk supports flock.
"""

import fcntl
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from compare.store import private_folder

_FOLDER = "locks"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@contextmanager
def hold(root: Path, name: str, *, wait: bool) -> Generator[bool]:
    """Hold the lock `name` of the store under `root` in the `with` block. Yield whether this process has it.

    With `wait` this process waits until it has the lock. Otherwise it yields False at once if another has it.

    Raises:
        Refused: see `private_folder.make`.
        OSError: the file cannot be made.
    """
    folder = private_folder.make(private_folder.make(root) / _FOLDER)
    with (folder / _UNSAFE.sub("-", name)).open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
