"""Keep the arrays of a recording in files, because those of a large model would not fit into memory at once."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.base import tensors
from compare.base.interface import Arrays

Floor = dict[str, float]
Perturbation = tuple[float, int, int]
"""A relative roundoff, and the numbers of its runs: the first one, and the one after the last."""

_MARK = "record"  # a file without arrays that marks the folder of a record


@dataclass(frozen=True)
class Record:
    """A recording: a folder with a file for each part, and the names of all arrays in execution order.

    Only a folder that `begin` made, in this process or another, is ever deleted.
    """

    folder: Path
    names: Sequence[str] = ()

    def begin(self) -> None:
        """Make the folder, and delete a record that an earlier try has left there.

        Raises:
            FileExistsError: the path exists and is not a record.
            DiskFull: as `compare.base.tensors.save`.
        """
        self.delete()
        if self.folder.exists():
            raise FileExistsError(f"{self.folder} exists and is not a record")
        tensors.save({}, self.folder / _MARK)

    def load(self) -> Arrays:
        """Map the arrays in execution order. They stay readable after `delete`."""
        arrays: Arrays = {}
        for path in self.folder.iterdir():
            arrays |= tensors.load(path)
        return {name: arrays[name] for name in self.names}

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def delete(self) -> None:
        """Delete the folder, if `begin` made it."""
        if (self.folder / _MARK).is_file():
            shutil.rmtree(self.folder, ignore_errors=True)
