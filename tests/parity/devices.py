"""What the tests of several devices and of several machines share: a narrow model's record in float64."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from compare.base import commands, descriptions, workloads
from compare.base.interface import Arrays, RunSpec
from compare.base.records import Record
from compare.data import dataset_file, synthetic
from compare.data.datasets import Dataset
from compare.execution.child import Child
from compare.machine import variables
from compare.settings import tunings
from tests.parity import twins
from tests.unoptimised import VARIABLES

STEPS, BATCH, PIXELS, MOST = 2, 8, 7, 4
LIMIT = 1e-10
WORKLOAD = replace(
    workloads.get("cifar-cnn"),
    name="narrow",
    model=replace(twins.narrowed(workloads.get("cifar-cnn").model), image=(PIXELS, PIXELS, 3)),
)
NONE_BEGUN: Mapping[str, str] = {}


class Recorder:
    """A child of each backend, and what it recorded, in float64 where nothing else is said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._children = folder, dict[str, Child]()
        self._made: dict[tuple[str, str, int, str, str], Arrays] = {}
        train, test = synthetic.make(WORKLOAD.model.image, classes=10, seed=1, train=STEPS * BATCH, test=BATCH)
        self.dataset = Dataset(train, test, "synthetic")
        dataset_file.save(self.dataset, folder / "data.safetensors")

    def child(self, backend: str) -> Child:
        if backend not in self._children:
            self._children[backend] = self.started(backend)
        return self._children[backend]

    def started(self, backend: str, begun: Mapping[str, str] = NONE_BEGUN) -> Child:
        """Return a child that is ready, whose further processes may be `begun` beside it, by variables."""
        added = variables.make_child_environment(backend, {}, "cpu", False, os.environ | VARIABLES, devices=MOST)
        child = Child(backend, f"{backend}backend", {**VARIABLES, **added, **begun}, self.folder)
        child.greet(120)
        return child

    def spec(self, backend: str, tuning: str, devices: int, batch_norm: str, precision: str = "float64") -> RunSpec:
        return RunSpec(
            workload=WORKLOAD.name,
            precision=precision,
            device="cpu",
            batch_size=BATCH,
            seed=3,
            knobs=tunings.resolve(backend, tuning, "cpu", WORKLOAD.name),
            epochs=1,
            data=str(self.folder / "data.safetensors"),
            described=descriptions.to_json(WORKLOAD),
            devices=devices,
            batch_norm=batch_norm,
        )

    def record(
        self, backend: str, tuning: str, devices: int = 1, batch_norm: str = "sync", precision: str = "float64"
    ) -> Arrays:
        key = backend, tuning, devices, batch_norm, precision
        if key not in self._made:
            # DistributedDataParallel changes for good what torch traces, once it reduces within a backward pass.
            own = "compiled-autograd" in tuning
            with closing(self.started(backend)) if own else nullcontext(self.child(backend)) as child:
                self._made[key] = recorded(child, self.spec(*key), self.folder)
        return self._made[key]

    def close(self) -> None:
        for child in self._children.values():
            child.close()


def recorded(child: Child, spec: RunSpec, folder: Path) -> Arrays:
    """Return what a child records of two steps, by name."""
    made = Path(tempfile.mkdtemp(dir=folder), "record")
    return Record(made, child.call(commands.Record(spec=spec, steps=STEPS, path=str(made)), 300)).load()


def distance(a: Arrays, b: Arrays) -> float:
    """Return the largest relative distance of two records with the same names and shapes."""
    assert a.keys() == b.keys()
    assert all(a[name].shape == b[name].shape for name in a)
    return max(float(np.linalg.norm(a[name] - b[name]) / max(np.linalg.norm(b[name]), 1e-30)) for name in a)


def printed(script: str, devices: int) -> str:
    """Return what a script prints that sees so many virtual devices."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, check=True).stdout
