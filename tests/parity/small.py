"""Every workload with several layers, narrow and on a few pixels, with its own update rule."""

from dataclasses import replace
from typing import Any

import numpy as np

from compare.base import descriptions, workloads
from compare.base.interface import Batch, RunSpec
from compare.base.workloads import Workload
from compare.data import weights
from compare.settings import tunings
from tests.parity import twins

# Pooling and strides leave at least one of so few pixels.
SIDES = {
    "cifar-cnn": 7,
    "cifar-resnet18": 5,
    "resnet50": 9,
    "convnext-tiny": 9,
    "vgg16": 9,
    "mobilenet-v2": 9,
    "unet": 9,
}
BATCH = 4


def small(name: str, side: int, **arguments: Any) -> Workload:
    found = workloads.get(name)
    model = twins.narrowed(found.model, image=(side, side, 3), classes=5)
    return replace(found, name="small", model=replace(model, arguments={**model.arguments, **arguments}))


def spec(workload: Workload, backend: str, tuning: str, **changes: Any) -> RunSpec:
    described = descriptions.to_json(workload)
    made = twins.spec(backend, image_size=None, batch_size=BATCH, described=described, **changes)
    return replace(made, workload=workload.name, knobs=tunings.resolve(backend, tuning, "cpu", workload.name))


def opened(workload: Workload, backend: str, tuning: str, **changes: Any) -> Any:
    session = twins.BACKENDS[backend].open(spec(workload, backend, tuning, **changes))
    session.assign(weights.randomise(session.signature(), 3))
    return session


def batches(workload: Workload, count: int = 2) -> list[Batch]:
    drawn, model = np.random.default_rng(1), workload.model
    labels = (BATCH, *model.image[:2]) if model.family == "unet" else (BATCH,)
    return [
        Batch(
            drawn.normal(size=(BATCH, *model.image)).astype(np.float32),
            drawn.integers(model.classes, size=labels, dtype=np.int32),
        )
        for _ in range(count)
    ]
