"""Workloads for planted bugs, narrow and on small images, and the inputs of one side of a comparison."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare.base import workloads
from compare.base.interface import Array, Arrays, Batch, RunSpec
from compare.base.workloads import OptimizerSpec, Schedule, Workload
from compare.data import dataset_file, datasets
from compare.data.datasets import Dataset
from tests.parity import twins

BATCH, CLASSES, STEPS = 4, 5, 3


def _spotted(images: Array) -> Array:
    images = images.copy()
    images[::2, 4, 4] += 50
    return images


_IMAGES: dict[str, Callable[[Array], Array]] = {
    "cifar-resnet18, dark pixels": lambda images: images - np.float32(30),  # far from 0, where variance formulas differ
    "mobilenet-v2": _spotted,  # a bright pixel is cut at 6 after batch norm, noise hardly ever is
}


def _probe(name: str, size: int, **changes: Any) -> Workload:
    """Return a real workload, narrow and on small images."""
    real = workloads.get(name)
    image = (size, size, real.model.image[2])
    return replace(real, model=twins.narrowed(real.model, image=image, classes=CLASSES), **changes)


def _shallow_unet(size: int) -> Workload:
    """Return unet with one level, which compiles in half the time. Every bug of it is in a single level."""
    probe = _probe("unet", size)
    return replace(probe, model=replace(probe.model, arguments={**probe.model.arguments, "widths": (4, 6)}))


_ACCUMULATE = {"cifar-cnn, two micro-batches": 2}
_SGD = workloads.get("cifar-cnn").optimizer

PROBES: dict[str, Workload] = {
    "digits-cnn": _probe("digits-cnn", 8),
    "cifar-cnn": _probe("cifar-cnn", 7),
    "cifar-cnn, heavy ball": _probe("cifar-cnn", 7, optimizer=replace(_SGD, nesterov=False)),
    "cifar-cnn, kernels decay": _probe(
        "cifar-cnn", 7, optimizer=replace(_SGD, weight_decay=0.01, decay_kernels_only=True)
    ),
    "cifar-resnet18, dark pixels": _probe("cifar-resnet18", 1),
    "cifar-resnet18": _probe("cifar-resnet18", 8),
    "resnet50": _probe("resnet50", 12),
    "convnext-tiny": _probe("convnext-tiny", 17),
    "vgg16": _probe("vgg16", 9),
    "mobilenet-v2": _probe("mobilenet-v2", 9),
    "unet": _shallow_unet(7),
    "unet, even": _shallow_unet(8),
    "cifar-cnn, two micro-batches": _probe("cifar-cnn", 7),
    "digits-cnn, smoothed": _probe("digits-cnn", 8, label_smoothing=0.1),
    "digits-cnn, scheduled": _probe(
        "digits-cnn", 8, optimizer=OptimizerSpec("sgd", 0.05, schedule=Schedule("cosine", total=10))
    ),
}


@dataclass
class Side:
    """The inputs of one side. A planted bug changes them, or patches that side's code."""

    probe: str
    workload: Workload
    train: Batch
    test: Batch
    patch: pytest.MonkeyPatch
    seed: int = 3

    @classmethod
    def clean(cls, probe: str, patch: pytest.MonkeyPatch, seed: int = 3) -> "Side":
        """Return the side without a bug, with two and a half batches of images."""
        workload = PROBES[probe]
        image, count = workload.model.image, 2 * BATCH + BATCH // 2
        made = datasets.synthesise(workload, image, seed=seed, train=count, test=BATCH)
        change = _IMAGES.get(probe, lambda images: images)
        train, test = (Batch(change(each.images), each.labels) for each in (made.train, made.test))
        return cls(probe, workload, train, test, patch, seed)

    def optimizer(self, **changes: Any) -> None:
        """Change the update rule."""
        self.workload = replace(self.workload, optimizer=replace(self.workload.optimizer, **changes))

    def spec(self, backend: str, precision: str, folder: Path) -> RunSpec:
        """Write the data and return the backend's spec."""
        self.patch.setattr(workloads, "WORKLOADS", {self.workload.name: self.workload})
        file = folder / "data.safetensors"
        dataset_file.save(Dataset(self.train, self.test, ""), file)
        spec = twins.spec(backend, precision=precision, batch_size=BATCH, seed=self.seed, data=str(file))
        accumulate = _ACCUMULATE.get(self.probe, 1)
        return replace(spec, workload=self.workload.name, image_size=None, accumulate=accumulate)

    def record(self, backend: str, precision: str, folder: Path) -> Arrays:
        """Return the record of this side."""
        return twins.recorded(twins.BACKENDS[backend], self.spec(backend, precision, folder), STEPS)
