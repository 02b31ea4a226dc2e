"""Winners of `samestep tune`: the tuning `best` stands for the one of this workload, device and package versions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.base import descriptions, untrusted
from compare.base.interface import Refused
from compare.base.workloads import Workload
from compare.machine import environment, nvml
from compare.settings import backends
from compare.settings.tunings import BEST
from compare.store import private_folder
from compare.store.entries import Store

KIND = "best"
"""The kind of these entries in the store."""

_FILE = "tuning.json"


@dataclass(frozen=True)
class Place:
    """What a winner holds for: a workload at a batch size, precision and task, on one kind of device.

    Attributes:
        batch_size: images of a step, or of the largest request.
        raced_size: the batch size that a search times: images of a step, or of the smallest request.
    """

    workload: Workload
    device: str
    precision: str
    batch_size: int
    raced_size: int
    task: str

    def list_facts(self, backend: str) -> dict[str, Any]:
        """Return everything that decides which tuning of a backend is the fastest, as JSON types."""
        packages = backends.find(backend).distributions
        return {
            "workload": descriptions.to_json(self.workload),
            "precision": self.precision,
            "batch_size": self.raced_size,
            "task": self.task,
            "device": nvml.name_first_gpu() if self.device == "cuda" else environment.read_cpu_model(),
            "backend": backend,
            "versions": {name: environment.find_version(name) for name in packages},
        }


def keep(root: str | Path | None, place: Place, backend: str, tuning: str) -> None:
    """Keep the winner of a search, in place of an earlier one. `root` is the option --store.

    Raises:
        Refused: another user can change the store.
        OSError: the file system refuses.
    """
    what = f"{backend}:{tuning} for {place.workload.name} in {place.precision}"
    store = Store(private_folder.find_root(root))
    store.replace_json(KIND, place.list_facts(backend), _FILE, {"tuning": tuning}, what)


def find(root: str | Path | None, place: Place, backend: str) -> str | None:
    """Return the tuning that a search has found and kept, or None."""
    entry = Store(private_folder.find_root(root)).find(KIND, place.list_facts(backend))
    if entry is None:
        return None
    kept: Mapping[str, Any] = untrusted.parse(untrusted.read(entry.folder / _FILE, untrusted.SIZE_LIMIT, "a JSON file"))
    return str(kept["tuning"])


def replace_best(texts: Sequence[str], root: str | Path | None, place: Place) -> list[str]:
    """Return contenders with the tuning that was found in place of `best`.

    Raises:
        Refused: nothing was found for this workload, device and these versions.
    """
    return [_replace(text, root, place) for text in texts]


def _replace(text: str, root: str | Path | None, place: Place) -> str:
    backend, _, tuning = text.partition(":")
    head, plus, rest = tuning.partition("+")
    if head != BEST or backend not in backends.find_all():
        return text
    found = find(root, place, backend)
    if found is None:
        where = f"{place.workload.name} ({place.task}, {place.precision}, batch {place.raced_size})"
        raise Refused(
            f"contender {text!r}: no winner is kept for {where} with this device and these versions; find one with "
            f"samestep tune {backend} and the same options, or use {backend}:tuned"
        )
    return f"{backend}:{found}{plus}{rest}"
