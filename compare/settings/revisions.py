"""Revisions of a user's code: a contender `torch:compiled@main` runs the models as the commit `main` has them.

The files of a commit are copied into the store. The user's own checkout is not touched.
"""

import io
import re
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compare.base.interface import Refused
from compare.base.workloads import PAIR, Workload
from compare.settings.contenders import Contender
from compare.store import private_folder
from compare.store.entries import Store

KIND = "revisions"
"""The kind of these entries in the store."""

_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/~^-]*")
_SECONDS = 300


def check_out(contenders: Sequence[Contender], workload: Workload, store: str | Path | None) -> tuple[Contender, ...]:
    """Return contenders with the commits of their revisions, and copy the files of these commits into the store.

    Raises:
        Refused: the workload is no pair of the user's own, there is no such revision, or its files cannot be copied.
    """
    if not any(contender.revision for contender in contenders):
        return tuple(contenders)
    if workload.model.family != PAIR:
        named = next(contender.name for contender in contenders if contender.revision)
        raise Refused(
            f"contender {named}: a revision is of your own models; allowed: with --torch FILE.py:NAME or --jax"
        )
    return tuple(_check_out(each, workload, store) if each.revision else each for each in contenders)


def move_to_revision(workload: Workload, contender: Contender) -> Workload:
    """Return a pair's workload whose factories lie in the folder of a contender's commit."""
    arguments = dict(workload.model.arguments)
    for side in ("jax", "torch"):
        place, _, name = str(arguments.get(side, "")).rpartition(":")
        if place.endswith(".py"):
            arguments[side] = f"{Path(contender.code) / _relative(Path(place))}:{name}"
    return replace(workload, model=replace(workload.model, arguments=arguments))


def find_root(contender: Contender) -> Path:
    """Return the folder in a contender's commit that stands for the current one."""
    return Path(contender.code) / _relative(Path.cwd())


def _check_out(contender: Contender, workload: Workload, store: str | Path | None) -> Contender:
    revision = contender.revision
    if not _REVISION.fullmatch(revision):
        raise Refused(f"contender {contender.name}: {revision!r} is no revision; allowed: a commit, branch or tag")
    top = _find_top(Path.cwd())
    commit = _run_git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise Refused(f"contender {contender.name}: there is no revision {revision} in {top}; allowed: one of git log")
    name = commit.decode().strip()
    facts = {"commit": name, "repository": str(top)}
    try:
        kept = Store(private_folder.find_root(store))
        entry = kept.find(KIND, facts) or kept.add(
            KIND, facts, lambda folder: _copy(top, name, folder), f"{revision} of {top}"
        )
    except OSError as error:
        raise Refused(f"contender {contender.name}: its files cannot be copied: {error}") from error
    moved = replace(contender, commit=name, code=str(entry.folder / "files"))
    place = str(workload.model.arguments.get(contender.backend, "")).rpartition(":")[0]
    if place.endswith(".py") and not (Path(moved.code) / _relative(Path(place))).is_file():
        raise Refused(f"contender {contender.name}: revision {revision} has no {place}; allowed: one that has it")
    return moved


def _copy(top: Path, commit: str, folder: Path) -> None:
    """Write the files of a commit to a folder. Links are left out."""
    packed = _run_git(top, "archive", "--format=tar", commit)
    if packed is None:
        raise OSError(f"git archive {commit} failed")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = [member for member in archive if member.isfile() or member.isdir()]
        archive.extractall(folder / "files", members=members, filter="data")
    (folder / "files").mkdir(exist_ok=True)


def _relative(path: Path) -> Path:
    """Return a path relative to the top of the user's repository."""
    absolute = path.expanduser().resolve()
    top = _find_top(Path.cwd())
    if not absolute.is_relative_to(top):
        raise Refused(f"{path} is not in the repository {top}; allowed: files of the repository of the current folder")
    return absolute.relative_to(top)


def _find_top(folder: Path) -> Path:
    top = _run_git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        raise Refused(f"{folder} is in no git repository; allowed: @REV in a checkout of your code")
    return Path(top.decode().strip()).resolve()


def _run_git(folder: Path, *arguments: str) -> bytes | None:
    """Return the output of git, None if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return None
