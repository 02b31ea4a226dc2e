"""What the knob `rematerialisation` does to memory on a CPU, by WORKLOAD:BATCH.

torch: most bytes live at any time of one step, in eager mode, beyond weights and batch: every operation's results are
counted from when they are made to when the last tensor lets go of them. JAX: XLA's plan for a step, weights included.
    python -m benchmarks.rematerialised_memory cifar-resnet18:256 resnet50:16
"""

import sys
import weakref
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import jaxbackend.backend
import torchbackend.backend
from compare.base import workloads
from compare.base.interface import Batch, RunSpec
from compare.data import weights
from compare.settings import tunings

TUNINGS = ("stock", "stock+rematerialisation")


class Live(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._counted(each.untyped_storage())
        return result

    def _counted(self, storage: Any) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place not in self._known:
            self._known.add(place)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size


def opened(backend: Any, workload: str, tuning: str, batch: Batch) -> Any:
    switches = tunings.resolve(backend.name, tuning, "cpu", workload)
    spec = RunSpec(workload, "float32", "cpu", len(batch.labels), seed=0, knobs=switches, epochs=1, data="")
    session = backend.open(spec)
    session.assign(weights.randomised(session.signature(), 0))
    session.feed([batch])
    return session


def torch_bytes(session: Any) -> int:
    with Live() as live:
        session.run(1)
    return live.peak


def jax_bytes(session: Any) -> int:
    return session.memory().static_bytes


def main() -> None:
    for workload, size in (each.split(":") for each in sys.argv[1:]):
        model, drawn = workloads.get(workload).model, np.random.default_rng(0)
        labels = (int(size), *model.image[:2]) if model.family == "unet" else (int(size),)
        images = drawn.normal(size=(int(size), *model.image)).astype(np.float32)
        batch = Batch(images, drawn.integers(model.classes, size=labels, dtype=np.int32))
        for backend, count in ((torchbackend.backend.BACKEND, torch_bytes), (jaxbackend.backend.BACKEND, jax_bytes)):
            kept, less = (count(opened(backend, workload, tuning, batch)) / 1e6 for tuning in TUNINGS)
            print(f"{workload}:{size} {backend.name}: {kept:.1f} MB, {less:.1f} MB ({less / kept:.2f})", flush=True)


if __name__ == "__main__":
    main()
