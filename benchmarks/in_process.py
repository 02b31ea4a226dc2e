"""A contender opened in this process as the worker opens it in a child, for measurements that need its inside."""

import atexit
import importlib
import os
import tempfile
from pathlib import Path
from time import perf_counter

from compare import data
from compare.base import workloads
from compare.base.interface import RunSpec
from compare.data import dataset_file
from compare.machine import variables
from compare.settings import tunings
from compare.worker.server import Worker


def opened(
    backend: str,
    tuning: str,
    workload: str,
    *,
    precision: str,
    device: str,
    batch_size: int | None = None,
    devices: int = 1,
    batch_norm: str = "sync",
) -> Worker:
    """Return a worker with an open session, its first epoch of batches on the device; nothing has run yet."""
    chosen = workloads.get(workload)
    size = batch_size or chosen.batch_size
    switches = tunings.resolve(backend, tuning, device, workload, precision, batch_norm)
    os.environ |= variables.child_environment(backend, switches, device, False, os.environ, devices=devices)
    worker = Worker(importlib.import_module(f"{backend}backend.backend").BACKEND, perf_counter)
    scratch = tempfile.TemporaryDirectory()
    atexit.register(scratch.cleanup)  # the ranks of a contender meet there, for as long as they live
    path = Path(scratch.name) / "dataset.safetensors"
    dataset_file.save(data.load(chosen, folder=None, seed=0, batch_size=size), path)
    spec = RunSpec(workload, precision, device, size, 0, switches, 1, str(path), devices=devices, batch_norm=batch_norm)
    worker.open(spec.to_json())
    return worker
