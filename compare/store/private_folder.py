"""Folders that nobody else can change. Whatever samestep loads as code or proof lies in one."""

import grp
import os
import pwd
import stat
from pathlib import Path

from compare.base.interface import Refused


def find_default_root() -> Path:
    """Return the folder of the store: `samestep` under XDG_CACHE_HOME, or under ~/.cache.

    A relative XDG_CACHE_HOME is ignored, as the XDG Base Directory Specification says.

    Raises:
        RuntimeError: this user has no home folder.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "samestep"


def find_root(named: str | Path | None) -> Path:
    """Return the folder of the store that a user names, or else `default_root`."""
    return find_default_root() if named is None else Path(named).expanduser().absolute()


def make(folder: Path) -> Path:
    """Return a private folder, and make it if it does not exist.

    The folder gets mode 0700. So do missing folders above it.

    Raises:
        Refused: the folder, or one above it, belongs to another user or can be changed by one.
        OSError: the folder cannot be made.
    """
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:  # another run was faster
            continue
    check(folder)
    if stat.S_IMODE(folder.stat().st_mode) != 0o700:
        folder.chmod(0o700)
    return folder


def find_programs(otherwise: Path, store: str | Path | None = None) -> Path:
    """Return the folder for compiled programs of all runs, or `otherwise` if this user can have none.

    `store` is the folder of the store, if the user names one.

    Raises:
        Refused: another user can change the folder, or the one that the user names cannot be made.
    """
    try:
        folder = make(find_root(store) / "programs")
    except (OSError, RuntimeError) as error:  # no home, one that cannot be written to, or a file in its place
        if store is not None:
            why = getattr(error, "strerror", None) or error
            raise Refused(f"--store {store}: cannot be made: {why}; allowed: a folder you may write to") from None
        return otherwise
    return folder if os.access(folder, os.W_OK | os.X_OK) else otherwise


def check(folder: Path) -> None:
    """Check that no other user can change a folder or put another in its place.

    Raises:
        Refused: the folder is a link or no folder, belongs to another user, or others may write to it or above it.
    """
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode):
        raise Refused(f"{folder} is a link or a file; allowed: a folder of your own")
    if state.st_uid != os.getuid():
        raise _refusal(folder, "belongs to another user")
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _refusal(folder, "can be written to by other users")
    for above in folder.resolve().parents:
        state = above.stat()
        if state.st_uid not in (0, os.getuid()):
            raise _refusal(above, "belongs to another user")
        if _others_can_write(state) and not state.st_mode & stat.S_ISVTX:
            raise _refusal(above, "can be written to by other users")


def _others_can_write(state: os.stat_result) -> bool:
    """Tell whether another user can write to a folder. A group of this user alone has no other user."""
    return bool(state.st_mode & stat.S_IWOTH) or bool(state.st_mode & stat.S_IWGRP and not _is_own_group(state.st_gid))


def _is_own_group(group: int) -> bool:
    """Tell whether this user is the only member of a group, as of the one that many systems make for each user."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
        members = {*grp.getgrgid(group).gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == group)}
    except KeyError:  # a group or user without an entry
        return False
    return members == {name}


def _refusal(folder: Path, why: str) -> Refused:
    return Refused(
        f"{folder} {why}, so what samestep keeps there cannot be trusted; "
        "remove the folder, or set XDG_CACHE_HOME to a folder of your own"
    )
