"""Why samestep standardises the digits and pads the convolution: test accuracy over seeds with and without, in JAX.

python benchmarks/digits_accuracy.py
"""

import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np

from compare import data
from compare.base import workloads
from compare.base.interface import Batch, RunSpec
from compare.data import Dataset, dataset_file, digits
from compare.machine import variables
from compare.settings import tunings
from compare.worker.server import Worker

SEEDS = range(5)


def unstandardised(batch: Batch) -> Batch:
    """Grey values from 0 to 1, as most tutorials have them."""
    return Batch((batch.values() * np.float32(digits.DEVIATION) + np.float32(digits.MEAN)).clip(0, 1), batch.labels)


def main() -> None:
    switches = tunings.resolve("jax", "compiled", "cpu", "digits-cnn")
    os.environ |= variables.child_environment("jax", switches, "cpu", False, os.environ)
    from jaxbackend import layers
    from jaxbackend.backend import BACKEND
    from jaxbackend.models import simple

    class Unpadded(layers.Conv):
        def __init__(self, *inputs: Any, **options: Any) -> None:
            super().__init__(*inputs, **(options | {"padding": 0}))

    class UnpaddedDense(layers.Dense):
        def __init__(self, inputs: int, outputs: int, **options: Any) -> None:
            super().__init__(32 * 3 * 3 if inputs == 32 * 4 * 4 else inputs, outputs, **options)

    workload = workloads.get("digits-cnn")
    for standardise in (False, True):
        for pad in (False, True):
            accuracies: list[float] = []
            for seed in SEEDS:
                dataset = data.load(workload, folder=None, seed=seed, batch_size=workload.batch_size)
                if not standardise:
                    dataset = Dataset(unstandardised(dataset.train), unstandardised(dataset.test), dataset.source)
                with tempfile.TemporaryDirectory() as scratch:
                    path = Path(scratch) / "dataset.safetensors"
                    dataset_file.save(dataset, path)
                    spec = RunSpec(
                        workload.name, "float32", "cpu", workload.batch_size, seed, switches, workload.epochs, str(path)
                    )
                    worker = Worker(BACKEND, perf_counter)
                    conv, dense = (layers.Conv, layers.Dense) if pad else (Unpadded, UnpaddedDense)
                    with mock.patch.object(simple, "Conv", conv), mock.patch.object(simple, "Dense", dense):
                        worker.open(spec.to_json())
                        accuracies.append(worker.train()["test_accuracy"])
            listed = ", ".join(f"{100 * accuracy:.2f}" for accuracy in accuracies)
            print(f"standardised {standardise!s:5}  padded {pad!s:5}  test accuracy (%) at seeds 0 to 4: {listed}")


if __name__ == "__main__":
    main()
