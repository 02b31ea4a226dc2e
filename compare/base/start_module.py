"""Run one of samestep's modules from a checkout that is not installed: `start_module.py -m MODULE ARGUMENT...`.

The checkout serves samestep's own packages alone. Any other file there hides no module of Python or of a framework.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_CHECKOUT = str(Path(__file__).resolve().parents[2])


class _Finder:
    """Finds samestep's packages and that of the module that runs."""

    def __init__(self, module: str) -> None:
        self._names = {"compare", "jaxbackend", "torchbackend", module.partition(".")[0]}

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the place of one of samestep's packages, and None for anything else."""
        return PathFinder.find_spec(name, [_CHECKOUT]) if path is None and name in self._names else None


if __name__ == "__main__":
    module = sys.argv[2]
    del sys.argv[1:3]
    sys.meta_path.insert(0, _Finder(module))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
