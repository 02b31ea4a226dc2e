"""Train one model in several processes: the session of this process, and one like it in every other."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from compare.base.interface import Array, Arrays, Batch, Kernel, Memory, Refused, RunSpec, State
from compare.base.operation_counts import Operation
from compare.base.profiles import Peaks, Profile
from compare.worker.rank_controller import RankController

_OVER_DEVICES = ("activation/", "logits")
OWN_PART = (*_OVER_DEVICES, "loss")
"""Prefixes of the names whose arrays differ between the processes in an inspected step."""


class DistributedSession:
    """`compare.base.interface.Session` over all ranks. Each rank trains on its part of every batch.

    This process is rank 0. A rank that fails reports why before it ends. Its neighbours wait for it in an exchange, so
    they are then ended. In `lockstep`, every call goes to all ranks, even if one could answer it.
    """

    def __init__(self, spec: RunSpec, controller: RankController, *, lockstep: bool) -> None:
        self._controller, self._lockstep = controller, lockstep
        self._own = controller.open(spec)

    @property
    def steps_per_dispatch(self) -> int:
        """See `compare.base.interface.Session`."""
        return self._own.steps_per_dispatch

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.base.interface.Session`."""
        return self._own.signature()

    def assign(self, arrays: Arrays) -> None:
        """See `compare.base.interface.Session`."""
        self._controller.call_all("assign", arrays)

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.base.interface.Session`."""
        size = self._controller.world_size
        parts = [_split(batch, size) for batch in batches]
        self._controller.call_each("feed", [[part[rank] for part in parts] for rank in range(size)])

    def run(self, steps: int) -> None:
        """See `compare.base.interface.Session`."""
        self._controller.call_all("run", steps)

    def wait(self) -> None:
        """See `compare.base.interface.Session`."""
        self._controller.call_all("wait")

    def losses(self) -> Array:
        """See `compare.base.interface.Session`."""
        return np.mean(self._controller.call_all("losses"), axis=0)

    def logits(self, images: Array) -> Array:
        """See `compare.base.interface.Session`."""
        return self._call_one("logits", images)

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """See `compare.base.interface.Session`."""
        return self._call_one("run_layer", layer, inputs, training)

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.base.interface.Session`."""
        parts = self._controller.call_each("inspect", _split(batch, self._controller.world_size))
        whole = {
            name: np.concatenate([part[name] for part in parts]) if name.startswith(_OVER_DEVICES) else array
            for name, array in parts[0].items()
        }
        return whole | {"loss": np.mean([part["loss"] for part in parts], axis=0)}

    def export(self) -> State:
        """See `compare.base.interface.Session`."""
        return self._call_one("export")

    def memory(self) -> Memory:
        """Return the largest figures of any device. See `compare.base.interface.Session`."""
        own, *others = self._controller.call_all("memory")
        figures: list[dict[str, Any]] = [vars(own), *others]
        largest: dict[str, Any] = {
            field.name: max((each[field.name] for each in figures if each[field.name] is not None), default=None)
            for field in fields(Memory)
            if field.name != "absent"
        }
        return Memory(**largest, absent=own.absent)

    def kernels(self, steps: int) -> list[Kernel]:
        """See `compare.base.interface.Session`."""
        by_rank = self._controller.call_all("kernels", steps)
        return [Kernel(f"{rank}/{device}", *rest) for rank, own in enumerate(by_rank) for device, *rest in own]

    def watch(self) -> None:
        """Refuse: a step over several processes is not explained."""
        raise Refused("a step over several devices cannot be explained; allowed: one device")

    def profile(self, steps: int) -> Profile:
        """Refuse, as `watch`."""
        raise Refused(f"{steps} steps over several devices cannot be explained; allowed: one device")

    def operations(self) -> list[Operation]:
        """Refuse, as `watch`."""
        raise Refused("the operations of a step over several devices cannot be counted; allowed: one device")

    def peaks(self) -> Peaks:
        """Refuse, as `watch`."""
        raise Refused("the peaks of several devices cannot be measured; allowed: one device")

    def settings(self) -> dict[str, Any]:
        """See `compare.base.interface.Session`."""
        by_rank = self._controller.call_all("settings")
        return by_rank[0] | {"batch_size": sum(settings["batch_size"] for settings in by_rank)}

    def _call_one(self, name: str, *arguments: Any) -> Any:
        """Return the value of this process's session. In lockstep, all ranks make the call."""
        if self._lockstep:
            return self._controller.call_all(name, *arguments)[0]
        return getattr(self._own, name)(*arguments)


def _split(batch: Batch, count: int) -> list[Batch]:
    """Return a batch in equal parts."""
    size = len(batch.labels) // count
    cuts = [slice(rank * size, (rank + 1) * size) for rank in range(count)]
    return [Batch(batch.images[cut], batch.labels[cut], batch.levels) for cut in cuts]
