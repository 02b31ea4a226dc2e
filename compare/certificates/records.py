"""What a child recorded, in files: the arrays of a large model's steps would not fit into memory at once."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare import tensors
from compare.interface import Arrays


@dataclass(frozen=True)
class Record:
    """What a child recorded: a folder with a file for each part, and the names of all arrays in execution order."""

    folder: Path
    names: Sequence[str]

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
        """Delete its files."""
        shutil.rmtree(self.folder, ignore_errors=True)
