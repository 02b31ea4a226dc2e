"""Both backends in one process on the CPU, for tests that compare them."""

import gc
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compare.base import workloads
from compare.base.interface import (
    Arrays,
    Backend,
    Batch,
    RunSpec,
    Session,
)
from compare.base.workloads import ModelSpec
from compare.data import synthetic, weights
from compare.settings import tunings
from compare.worker import recording

BOTH = ("jax", "torch")


class Backends(dict[str, Backend]):
    """Imports a backend once it is asked for. A script that needs one of them saves seconds."""

    def __missing__(self, name: str) -> Backend:
        self[name] = importlib.import_module(f"{name}backend.backend").BACKEND
        return self[name]


BACKENDS = Backends()

# Odd, so that pooling drops a row. None is the workload's own size.
IMAGE_SIZE = {"digits-cnn": None, "cifar-cnn": 7}
WORKLOADS = tuple(IMAGE_SIZE)

# Two stages of few channels by family, because XLA takes seconds to compile a program of the real models.
NARROW: dict[str, dict[str, Any]] = {
    "simple": {},
    "staged": {"widths": (4, 6)},
    "resnet": {"depths": (1, 1), "widths": (4, 6)},
    "convnext": {"depths": (1, 1), "widths": (4, 6)},
    "vgg": {"depths": (1, 2), "widths": (4, 6), "hidden": (8,)},
    "mobilenet": {"stem": 4, "stages": ((1, 4, 1, 1), (3, 6, 1, 2)), "head": 8},
    "unet": {"widths": (4, 6, 8)},
}


def narrowed(model: ModelSpec, **changes: Any) -> ModelSpec:
    return replace(model, arguments={**model.arguments, **NARROW[model.family]}, **changes)


def spec(backend: str, workload: str = "digits-cnn", tuning: str = "stock", **changes: Any) -> RunSpec:
    arguments: dict[str, Any] = {
        "precision": "float64",
        "device": "cpu",
        "batch_size": 8,
        "seed": 3,
        "epochs": 1,
        "data": "",
        "image_size": IMAGE_SIZE[workload],
        "knobs": tunings.resolve(backend, tuning, "cpu", workload),
    }
    return RunSpec(workload=workload, **(arguments | changes))


def batches(workload: str, count: int, *, size: int = 8) -> list[Batch]:
    model = workloads.get(workload).model.resized(IMAGE_SIZE[workload])
    drawn, _ = synthetic.make(model.image, classes=model.classes, seed=1, train=count * size, test=1)
    parts = [slice(start, start + size) for start in range(0, count * size, size)]
    return [Batch(drawn.images[part], drawn.labels[part]) for part in parts]


def recorded(backend: Backend, spec: RunSpec, steps: int, *, evenly: bool = False) -> Arrays:
    """Return the whole record that the certificate compares."""
    found: Arrays = {}
    names = recording.record(backend, spec, steps, lambda _, arrays: found.update(arrays), evenly=evenly)
    return {name: found[name] for name in names}


def session(backend: str, workload: str = "digits-cnn", tuning: str = "stock", **changes: Any) -> Session:
    """Return a session with randomised weights."""
    opened = BACKENDS[backend].open(spec(backend, workload, tuning, **changes))
    opened.assign(weights.randomise(opened.signature(), 3))
    return opened


def trained(opened: Session, pool: list[Batch], steps: int) -> Session:
    opened.feed(pool)
    opened.run(steps)
    return opened


def narrow(patch: pytest.MonkeyPatch, learning_rate: float | None = None) -> None:
    """Give cifar-cnn two narrow stages."""
    changed = dict(workloads.WORKLOADS)
    wide = changed["cifar-cnn"]
    optimizer = wide.optimizer if learning_rate is None else replace(wide.optimizer, learning_rate=learning_rate)
    changed["cifar-cnn"] = replace(wide, model=narrowed(wide.model), optimizer=optimizer)
    patch.setattr(workloads, "WORKLOADS", changed)


def held_by_jax(open_session: Callable[[], Session], pool: list[Batch]) -> tuple[int, int]:
    """Return the bytes that a JAX session holds after two steps in float64, and the bytes that it needs."""
    import jax

    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    session = trained(open_session(), pool, 2)
    session.wait()
    gc.collect()
    held = sum(array.nbytes for array in jax.live_arrays() if id(array) not in before)
    state = session.export()  # its arrays may share memory with JAX
    needed = [*state.parameters.values(), *state.buffers.values(), *state.optimizer.values()]
    needed += [array for batch in pool for array in (batch.images.astype(np.float64), batch.labels)]
    return held, sum(array.nbytes for array in needed)
