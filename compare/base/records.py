"""What a child recorded, in files: the arrays of a large model's steps would not fit into memory at once."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.base import tensors
from compare.base.interface import Arrays

Floor = dict[str, float]
Perturbation = tuple[float, int, int]
"""A relative roundoff, and the numbers of the runs that it is applied in: from the first up to the last, exclusive."""

_OWN = "record"  # a file without arrays, which says that the folder is a record's


@dataclass(frozen=True)
class Record:
    """What a child recorded: a folder with a file for each part, and the names of all arrays in execution order.

    The folder is one that `begin` has made, in this process or another; no other is ever deleted.
    """

    folder: Path
    names: Sequence[str] = ()

    def begin(self) -> None:
        """Make the folder; what an earlier try has left of the record is deleted.

        Raises:
            FileExistsError: there is something that is no record.
            DiskFull: as `compare.base.tensors.save`.
        """
        self.delete()
        if self.folder.exists():
            raise FileExistsError(f"{self.folder} is there and is no record")
        tensors.save({}, self.folder / _OWN)

    def load(self) -> Arrays:
        """Map its arrays, in execution order; they may be read after `delete`, too."""
        found: Arrays = {}
        for path in self.folder.iterdir():
            found |= tensors.load(path)
        return {name: found[name] for name in self.names}

    @property
    def size(self) -> int:
        """The bytes that its files take."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def delete(self) -> None:
        """Delete the folder, if `begin` has made it."""
        if (self.folder / _OWN).is_file():
            shutil.rmtree(self.folder, ignore_errors=True)
