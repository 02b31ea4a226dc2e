"""Checks of the folders that samestep writes to."""

import atexit
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from compare.base.interface import Refused

_FILES = ("result.json", "fit.json", "reproduction.json", "campaign.json", "trajectory.svg", "scaling.svg")


def make_folder(folder: Path) -> None:
    """Make the output folder. It is removed at the end of the program if it is still empty.

    Raises:
        Refused: results could not be written there.
    """
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        atexit.register(_remove_empty, missing)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(folder, error.strerror) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"--out {folder}: not writable; allowed: a folder you may write to")
    for name in _FILES:
        if (folder / name).exists() and not (folder / name).is_file():
            raise Refused(f"--out {folder}: {name} in it is not a regular file; allowed: a folder without it")


def is_there(folder: Path) -> bool:
    """Return whether the output folder exists. Make nothing.

    Raises:
        Refused: it is not, and could not be made.
    """
    try:
        nearest = next(each for each in (folder, *folder.parents) if each.exists())
    except OSError as error:
        raise _cannot_be_made(folder, error.strerror) from error
    if not nearest.is_dir():
        raise _cannot_be_made(folder, f"{nearest} is no folder")
    return nearest == folder


def make_file_folder(option: str, folder: Path) -> None:
    """Make the folder of a file that an option asks for, if it is missing.

    Raises:
        Refused: it cannot be made or written to, naming the option.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{folder} cannot be made: {error.strerror}"
        raise Refused(f"{option}: {why}; allowed: a folder you may write to") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"{option}: {folder} is not writable; allowed: a folder you may write to")


def check_scratch() -> None:
    """Check that TMPDIR, if set, is a folder that takes files. Python would silently use another folder.

    Raises:
        Refused: they cannot.
    """
    named = os.environ.get("TMPDIR")
    if named and not (Path(named).is_dir() and os.access(named, os.W_OK | os.X_OK)):
        raise Refused(f"TMPDIR={named}: no folder that may be written to; allowed: one that is there, or TMPDIR unset")


def _cannot_be_made(folder: Path, why: str | None) -> Refused:
    return Refused(f"--out {folder}: cannot be made: {why}; allowed: a folder you may write to")


def _remove_empty(folders: Sequence[Path]) -> None:
    for each in folders:
        with suppress(OSError):  # not empty, or never made
            each.rmdir()
