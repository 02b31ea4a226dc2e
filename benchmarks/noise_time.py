"""Seconds that a certificate's perturbed runs take, with freed memory kept for the next arrays, and without.

Fresh processes in turn. Two images a batch, two perturbed runs, float64, on the CPU.

    python -m benchmarks.noise_time --backend torch --workload vgg16 --image-size 32
"""

import argparse
import contextlib
import importlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare import data
from compare.base import workloads
from compare.base.interface import RunSpec
from compare.data import dataset_file
from compare.settings import tunings
from compare.worker import memory_reuse, recording

_MODES = {"default": contextlib.nullcontext, "kept": memory_reuse.kept}
_STEPS, _PERTURBATION = 3, (1e-12, 0, 2)


def timed(backend: str, workload: str, size: int, mode: str) -> str:
    """Return in words what the runs take in this process."""
    knobs = tunings.soonest(backend, tunings.resolve(backend, "stock", "cpu", workload))
    module = importlib.import_module(f"{backend}backend.backend")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dataset.safetensors"
        dataset_file.save(data.load(workloads.get(workload), folder=None, seed=0, batch_size=2, image_size=size), path)
        spec = RunSpec(workload, "float64", "cpu", 2, 0, knobs, 1, str(path), image_size=size)
        start = time.perf_counter()
        with _MODES[mode]():
            recording.noise(module.BACKEND, spec, _STEPS, [_PERTURBATION])
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"{backend} {workload} at {size} pixels, {mode}: {seconds:.1f} s, peak resident set {peak:.2f} GiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("torch", "jax"), required=True)
    parser.add_argument("--workload", default="vgg16")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--mode", choices=_MODES, help="this one alone, in this process")
    asked = parser.parse_args()
    if asked.mode:
        print(timed(asked.backend, asked.workload, asked.image_size, asked.mode), flush=True)
        return
    for mode in _MODES:
        subprocess.run([sys.executable, "-m", "benchmarks.noise_time", *sys.argv[1:], "--mode", mode], check=True)


if __name__ == "__main__":
    main()
