"""Entries of the store, found by a key of everything that decides their value.

An entry is a folder `KIND/KEY` with its files and `entry.json`. A run writes it under another name and renames it when
it is complete. So readers never see a part of an entry, even while other runs write.
"""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compare.base import untrusted
from compare.base.interface import Refused
from compare.store import private_folder

KINDS = ("certificates", "cells", "programs", "compile-times", "run-times", "revisions", "best")
"""Kinds of entries."""

LARGEST = 20 * 2**30
"""Bytes that the store may take. Entries that were not used for longest go first."""

_ABOUT = "entry.json"
_UNFINISHED = "unfinished"


def compute_key(facts: Mapping[str, Any]) -> str:
    """Return the key of an entry: the SHA-256 of its facts as JSON with sorted names, 64 hexadecimal digits.

    Raises:
        ValueError: a fact is NaN or infinite.
        TypeError: a fact is no JSON.
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Entry:
    """One entry.

    Attributes:
        kind: what it holds, such as `certificates`.
        key: of `key_of`.
        created: when it was made, ISO 8601 in UTC.
        folder: where its files are.
        what: what it is of, in words.
    """

    kind: str
    key: str
    created: str
    folder: Path
    what: str = ""

    @property
    def size(self) -> int:
        """Bytes that its files take."""
        return sum(path.lstat().st_size for path in self.folder.rglob("*"))


class Store:
    """The entries under one private folder."""

    def __init__(self, root: Path) -> None:
        """Make the folder, or check that nobody else can change it.

        Raises:
            Refused: see `private_folder.make`.
            OSError: the folder cannot be made.
        """
        self.root = private_folder.make(root)

    def find(self, kind: str, facts: Mapping[str, Any]) -> Entry | None:
        """Return the entry with these facts, or None if there is none. Note that it was used.

        An entry that cannot be read or holds other facts is deleted.
        """
        folder = self._place(kind, compute_key(facts))
        entry = self._read(kind, folder)
        if entry is None or entry[1] != json.loads(json.dumps(facts)):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        with suppress(OSError):
            os.utime(folder)
        return entry[0]

    def add(self, kind: str, facts: Mapping[str, Any], write: Callable[[Path], None], what: str = "") -> Entry:
        """Add an entry, and return it. `write` puts its files into a folder, and `what` describes it.

        If another run has added the same entry meanwhile, that one stays.

        Raises:
            OSError: the file system refuses. Then nothing of the entry remains.
            ValueError: the kind is none of `KINDS`, so no command could delete the entry.
        """
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is none of {', '.join(KINDS)}")
        key = compute_key(facts)
        private_folder.make(self.root / kind)
        self._remove_leftovers()
        unfinished, lock = _make_locked(private_folder.make(self.root / _UNFINISHED))
        created = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            write(unfinished)
            about = {"kind": kind, "key": key, "created": created, "what": what, "facts": facts}
            (unfinished / _ABOUT).write_text(json.dumps(about, indent=1, allow_nan=False), encoding="utf-8")
            for path in unfinished.rglob("*"):
                _flush(path)
            with suppress(OSError):  # there already: another run's
                unfinished.rename(self._place(kind, key))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.close(lock)
        self._make_room()
        entry = self.find(kind, facts)
        if entry is None:
            raise OSError(f"{self._place(kind, key)} cannot be read back")
        return entry

    def replace(self, kind: str, facts: Mapping[str, Any], write: Callable[[Path], None], what: str = "") -> Entry:
        """Add an entry in place of an earlier one with these facts, and return it.

        Raises:
            OSError: the file system refuses.
        """
        self.remove(kind, facts)
        return self.add(kind, facts, write, what)

    def replace_json(self, kind: str, facts: Mapping[str, Any], name: str, value: Any, what: str = "") -> Entry:
        """Add an entry with one JSON file of that name, in place of an earlier one with these facts.

        Raises:
            OSError: the file system refuses.
        """
        text = json.dumps(value)
        return self.replace(kind, facts, lambda folder: _write_text(folder / name, text), what)

    def remove(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Delete the entry with these facts, if there is one."""
        shutil.rmtree(self._place(kind, compute_key(facts)), ignore_errors=True)

    def search(self, kind: str) -> Iterator[tuple[Entry, Any]]:
        """Yield every entry of a kind with its facts, the most recently made first."""
        found = [entry for path in (self.root / kind).glob("*") if (entry := self._read(kind, path))]
        yield from sorted(found, key=lambda pair: pair[0].created, reverse=True)

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, the most recently used first."""
        folders = [path for path in self.root.glob("*/*") if path.is_dir() and path.parent.name != _UNFINISHED]
        for folder in sorted(folders, key=_used, reverse=True):
            if entry := self._read(folder.parent.name, folder):
                yield entry[0]

    def clear(self, kind: str | None = None) -> int:
        """Delete all entries, or those of one kind. Return the bytes that they took."""
        self._remove_leftovers()
        deleted = 0
        for entry in [entry for entry in self.entries() if kind in (None, entry.kind)]:
            deleted += entry.size
            shutil.rmtree(entry.folder, ignore_errors=True)
        return deleted

    def _place(self, kind: str, key: str) -> Path:
        return self.root / kind / key

    def _read(self, kind: str, folder: Path) -> tuple[Entry, Any] | None:
        try:
            about = untrusted.parse(untrusted.read(folder / _ABOUT, untrusted.SIZE_LIMIT, "a JSON file"))
            if (about["kind"], about["key"]) != (kind, folder.name):
                return None
            what = str(about.get("what", ""))
            return Entry(kind, folder.name, str(about["created"]), folder, what), about["facts"]
        except (OSError, Refused, KeyError, TypeError):
            return None

    def _remove_leftovers(self) -> None:
        """Delete what killed runs have not finished: folders that no run holds locked."""
        for folder in (self.root / _UNFINISHED).glob("*"):
            with suppress(OSError):  # a run holds it, or it is gone
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)

    def _make_room(self) -> None:
        total = 0
        for entry in self.entries():
            total += entry.size
            if total > LARGEST:
                shutil.rmtree(entry.folder, ignore_errors=True)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _used(folder: Path) -> float:
    with suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def _make_locked(parent: Path) -> tuple[Path, int]:
    """Make a folder that this process holds locked. Return it and the descriptor of the lock."""
    while True:
        folder = parent / uuid.uuid4().hex
        folder.mkdir(mode=0o700)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another run has taken it for a leftover
            continue
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # another run has locked it first and has removed it


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
