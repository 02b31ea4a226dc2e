"""Backends: the two of samestep, and those that installed packages add.

A package adds a backend through the entry-point group `samestep.backends`. The entry point's name is the backend's
name, and its value is a module:

    [project.entry-points."samestep.backends"]
    numpy = "numpybackend"

samestep runs that module in each child process (`python -m numpybackend PIPE PIPE`). The module calls
`compare.worker.server.serve(BACKEND)`, where BACKEND fulfils `compare.base.interface.Backend`. samestep's own process
reads the entry point's name and value only, and never imports the module.

An added backend has no knobs: its only tuning is `stock`, and a contender that asks for a knob is refused. It gets
every knob of a `RunSpec` at its default. It trains built-in and installed workloads, and refuses in `open` what it
lacks. Pairs of a user's own models stay between jax and torch.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from compare.base.interface import Refused

GROUP = "samestep.backends"


@dataclass(frozen=True)
class BackendEntry:
    """Where a backend is.

    Attributes:
        module: serves the backend as `python -m MODULE`.
        distributions: packages that must be installed for it.
    """

    module: str
    distributions: tuple[str, ...] = ()


BUILT_IN: dict[str, BackendEntry] = {
    "torch": BackendEntry("torchbackend", ("torch",)),
    "jax": BackendEntry("jaxbackend", ("jax", "flax", "optax")),
}


def find_all() -> Mapping[str, BackendEntry]:
    """Return every backend by name. An installed package cannot replace a built-in one."""
    installed = {name: BackendEntry(module) for name, module in _list_entry_points(tuple(sys.path))}
    return BUILT_IN | {name: entry for name, entry in installed.items() if name not in BUILT_IN}


@cache
def _list_entry_points(_path: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return name and module of each installed backend. Reading them takes 10 ms, and a run asks 20 times."""
    return [(point.name, point.value) for point in entry_points(group=GROUP)]


def find(name: str) -> BackendEntry:
    """Return the backend of that name.

    Raises:
        Refused: for an unknown name.
    """
    known = find_all()
    if name not in known:
        raise Refused(f"unknown backend {name!r}; allowed: {', '.join(known)}")
    return known[name]
