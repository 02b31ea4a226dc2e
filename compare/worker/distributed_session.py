"""One model in training in several processes: this process's session, and one like it in every other."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from compare.base.interface import (
    Array,
    Arrays,
    Batch,
    Kernel,
    Memory,
    RunSpec,
    State,
)
from compare.worker.rank_controller import RankController

_OVER_DEVICES = ("activation/", "logits")
OWN_PART = (*_OVER_DEVICES, "loss")
"""How the names begin of what each process has of its own of an inspected step; the rest, all have alike."""


class DistributedSession:
    """`compare.base.interface.Session` over all ranks: each call goes to all that must make it, and each trains on its part.

    The first is this process. One that fails says why before it ends; its neighbours, who wait for it, are then ended.
    In `lockstep`, calls that one process could answer are made in all of them, too.
    """

    def __init__(self, spec: RunSpec, ranks: RankController, *, lockstep: bool) -> None:
        self._ranks, self._lockstep = ranks, lockstep
        self._own = ranks.opened(spec)

    @property
    def steps_per_dispatch(self) -> int:
        """See `compare.base.interface.Session`."""
        return self._own.steps_per_dispatch

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.base.interface.Session`."""
        return self._own.signature()

    def assign(self, arrays: Arrays) -> None:
        """See `compare.base.interface.Session`."""
        self._ranks.all("assign", arrays)

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.base.interface.Session`."""
        parts = [_parts(batch, self._ranks.count) for batch in batches]
        self._ranks.each("feed", [[part[rank] for part in parts] for rank in range(self._ranks.count)])

    def run(self, steps: int) -> None:
        """See `compare.base.interface.Session`."""
        self._ranks.all("run", steps)

    def wait(self) -> None:
        """See `compare.base.interface.Session`."""
        self._ranks.all("wait")

    def losses(self) -> Array:
        """See `compare.base.interface.Session`."""
        return np.mean(self._ranks.all("losses"), axis=0)

    def logits(self, images: Array) -> Array:
        """See `compare.base.interface.Session`."""
        return self._one("logits", images)

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """See `compare.base.interface.Session`."""
        return self._one("run_layer", layer, inputs, training)

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.base.interface.Session`."""
        found = self._ranks.each("inspect", _parts(batch, self._ranks.count))
        whole = {
            name: np.concatenate([each[name] for each in found]) if name.startswith(_OVER_DEVICES) else array
            for name, array in found[0].items()
        }
        return whole | {"loss": np.mean([each["loss"] for each in found], axis=0)}

    def export(self) -> State:
        """See `compare.base.interface.Session`."""
        return self._one("export")

    def memory(self) -> Memory:
        """See `compare.base.interface.Session`: of the device that takes most."""
        own, *others = self._ranks.all("memory")
        found: list[dict[str, Any]] = [vars(own), *others]
        most: dict[str, Any] = {
            field.name: max((each[field.name] for each in found if each[field.name] is not None), default=None)
            for field in fields(Memory)
            if field.name != "absent"
        }
        return Memory(**most, absent=own.absent)

    def kernels(self, steps: int) -> list[Kernel]:
        """See `compare.base.interface.Session`."""
        found = self._ranks.all("kernels", steps)
        return [Kernel(f"{rank}/{device}", *rest) for rank, own in enumerate(found) for device, *rest in own]

    def settings(self) -> dict[str, Any]:
        """See `compare.base.interface.Session`."""
        found = self._ranks.all("settings")
        return found[0] | {"batch_size": sum(each["batch_size"] for each in found)}

    def _one(self, name: str, *arguments: Any) -> Any:
        """Return what this process's session gives; in lockstep, the others make the call with it."""
        return self._ranks.all(name, *arguments)[0] if self._lockstep else getattr(self._own, name)(*arguments)


def _parts(batch: Batch, count: int) -> list[Batch]:
    """Return a batch in equal parts."""
    size = len(batch.labels) // count
    cuts = [slice(rank * size, (rank + 1) * size) for rank in range(count)]
    return [Batch(batch.images[cut], batch.labels[cut], batch.levels) for cut in cuts]
