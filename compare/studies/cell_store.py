"""Finished cells in the store. A cell is kept with its result, where it ran, and how long it took."""

import gzip
import json
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from compare.base import untrusted
from compare.base.interface import Refused
from compare.results import result_file, verdicts
from compare.results.model import Result
from compare.store import locks, private_folder
from compare.store.entries import Entry, Store
from compare.studies.cells import Cell, Place, find_place_here

KIND = "cells"
"""The kind of these entries in the store."""

DONE, FAILED, REFUSED, UNDECIDED, PENDING = STATES = ("done", "failed", "refused", "undecided", "pending")
"""The states of a cell."""

_RESULT, _OUTCOME = "result.json.gz", "outcome.json"


@dataclass(frozen=True)
class CellState:
    """The state of one cell.

    Attributes:
        cell: the cell.
        status: one of `STATES`.
        reason: why the cell failed or was refused, or None.
        data: the bytes of its result file, None without a result.
        place: where it ran, None if it did not.
        seconds: how long it took, None if it did not run.
        created: when it finished, ISO 8601 in UTC.
        kept: whether an earlier run of a study finished it.
    """

    cell: Cell
    status: str = PENDING
    reason: str | None = None
    data: bytes | None = None
    place: Place | None = None
    seconds: float | None = None
    created: str | None = None
    kept: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether the cell has run to its end."""
        return self.status in (DONE, FAILED, UNDECIDED)

    @cached_property
    def result(self) -> Result | None:
        """The result, None if there is none.

        Raises:
            Refused: the stored bytes are no valid result.
        """
        return None if self.data is None else result_file.parse(self.data)


def judge(result: Result) -> tuple[str, str | None]:
    """Return the state of a cell with this result, and the reason if it failed."""
    if verdicts.contender_failed(result):
        failed = [each for each in result.contenders if each.status != "ok"]
        return FAILED, "; ".join(f"{each.name}: {each.status}, {each.reason}" for each in failed)
    if verdicts.claim_failed(result):
        invalid = [each for each in result.comparisons if each.verdict == "INVALID"]
        said = [f"{each.contender} against {each.baseline}: {each.reason}" for each in invalid]
        return FAILED, "; ".join(said) or f"agreement: {result.agreement.first_mismatch or 'fail'}"
    return (UNDECIDED if verdicts.is_undecided(result) else DONE), None


class CellStore:
    """The finished cells under one folder."""

    def __init__(self, root: str | Path | None = None) -> None:
        """Open the store of a user. `root` is the option --store.

        Raises:
            Refused: another user can change the folder.
            OSError: the folder cannot be made.
        """
        self._store = Store(private_folder.find_root(root))

    @property
    def root(self) -> Path:
        """The folder."""
        return self._store.root

    def find(self, cell: Cell, *, anywhere: bool = True) -> CellState | None:
        """Return a finished cell, None if there is none.

        A cell of this kind of machine comes first. With `anywhere` one of another kind is taken too.

        Raises:
            Refused: the comparison cannot be done here.
        """
        entry = self._store.find(KIND, _make_facts(cell, find_place_here(cell.device)))
        if entry is not None and (state := _read(cell, entry)) is not None:
            return state
        for entry, facts in self._store.search(KIND) if anywhere else ():
            if facts["content"] == cell.facts and (state := _read(cell, entry)) is not None:
                return state
        return None

    def add(self, state: CellState) -> CellState:
        """Keep a finished cell, in place of an earlier one of the same machine. Return it as it is kept.

        Raises:
            OSError: the file system refuses.
        """
        cell, place = state.cell, state.place
        assert place is not None
        assert state.data is not None
        data = state.data
        outcome = {
            "status": state.status,
            "reason": state.reason,
            "seconds": state.seconds,
            "place": asdict(place),
        }

        def write(folder: Path) -> None:
            (folder / _RESULT).write_bytes(gzip.compress(data, mtime=0))
            (folder / _OUTCOME).write_text(json.dumps(outcome, allow_nan=False), encoding="utf-8")

        facts = _make_facts(cell, place)
        entry = self._store.replace(KIND, facts, write, f"{cell.name}, {place.device}")
        kept = _read(cell, entry)
        if kept is None:
            raise OSError(f"{entry.folder} cannot be read back")
        return kept

    def remove(self, cell: Cell) -> None:
        """Forget a finished cell, wherever it ran."""
        for _, facts in list(self._store.search(KIND)):
            if facts["content"] == cell.facts:
                self._store.remove(KIND, facts)

    def lock(self, name: str, *, wait: bool = False) -> AbstractContextManager[bool]:
        """Hold a lock that this store's studies share (`compare.store.locks.hold`)."""
        return locks.hold(self.root, name, wait=wait)


def _make_facts(cell: Cell, place: Place) -> dict[str, Any]:
    return {"content": cell.facts, "place": dict(place.facts)}


def _read(cell: Cell, entry: Entry) -> CellState | None:
    """Return the state that an entry holds, None if its files are broken."""
    with suppress(OSError, EOFError, ValueError, KeyError, TypeError, Refused):
        outcome = untrusted.parse((entry.folder / _OUTCOME).read_bytes())
        with gzip.open(entry.folder / _RESULT) as stream:
            data = stream.read(untrusted.SIZE_LIMIT + 1)
        untrusted.check_size(data)
        assert outcome["status"] in STATES
        place = Place(str(outcome["place"]["device"]), dict(outcome["place"]["facts"]))
        return CellState(
            cell, outcome["status"], outcome["reason"], data, place, outcome["seconds"], entry.created, kept=True
        )
    return None
