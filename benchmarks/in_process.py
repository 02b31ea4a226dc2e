"""Open a contender in this process, as a child opens it, for tools that need its inside."""

import atexit
import importlib
import os
import tempfile
from pathlib import Path
from time import perf_counter

from compare.base import workloads
from compare.base.interface import RunSpec
from compare.data import dataset_file, datasets
from compare.machine import variables
from compare.settings import tunings
from compare.worker.worker import Worker


def open_worker(
    backend: str,
    tuning: str,
    workload: str,
    *,
    precision: str,
    device: str,
    batch_size: int | None = None,
    devices: int = 1,
    batch_norm: str = "sync",
    task: str = "train",
) -> Worker:
    """Return a worker with an open session. The first epoch lies on the device, and nothing has run yet."""
    workload_settings = workloads.get(workload)
    size = batch_size or workload_settings.batch_size
    switches = tunings.resolve(backend, tuning, device, workload, precision, batch_norm, task)
    os.environ |= variables.make_child_environment(backend, switches, device, False, os.environ, devices=devices)
    worker = Worker(importlib.import_module(f"{backend}backend.backend").BACKEND, perf_counter)
    scratch = tempfile.TemporaryDirectory()
    atexit.register(scratch.cleanup)  # the processes of a contender meet there while they live
    path = Path(scratch.name) / "dataset.safetensors"
    dataset_file.save(datasets.load(workload_settings, folder=None, seed=0, batch_size=size), path)
    spec = RunSpec(
        workload,
        precision,
        device,
        size,
        0,
        switches,
        1,
        str(path),
        devices=devices,
        batch_norm=batch_norm,
        task=task,
    )
    worker.open(spec)
    return worker
