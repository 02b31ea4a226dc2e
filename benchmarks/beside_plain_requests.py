"""Time samestep's tuned requests beside plain loops of the same framework, each in a fresh process.

Every round runs each loop once, and every other round runs them backwards. Programs come from a cache from the second
round on. The ratio is of p50 to the plain loop that is fastest over all rounds, with its 95 % interval.

    python -m benchmarks.beside_plain_requests --workload resnet50 --batch-sizes 1,256 --rounds 3
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.plain_requests import JAX_MODES, TORCH_MODES
from compare.base import statistics
from compare.machine import variables

MODES = {"torch": TORCH_MODES, "jax": JAX_MODES}
ON_A_CPU = {"torch": ("eager", "default"), "jax": ("jit",)}


def run(arguments: list[str], cache: Path) -> dict[str, Any] | None:
    """Return the figures that a loop prints, None if it fails."""
    kept = {
        name: value
        for backend in ("jax", "torch")
        for name, value in variables.make_cache_environment(backend, cache, cache).items()
    }
    command = [sys.executable, "-m", "benchmarks.plain_requests", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **kept})
    if done.returncode:
        print(f"{' '.join(arguments)} failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def beside(backend: str, size: int, options: argparse.Namespace, folder: Path) -> None:
    """Run a framework's loops in turn and print their figures."""
    shape = ["--backend", backend, "--workload", options.workload, "--batch-size", str(size)]
    shape += ["--device", options.device]
    modes = (MODES if options.device == "cuda" else ON_A_CPU)[backend]
    loops = {f"{backend}:{options.tuning}": [*shape, "--ours", options.tuning]}
    loops |= {f"plain {backend}, {mode}": [*shape, "--mode", mode] for mode in modes}
    times: dict[str, list[float]] = {name: [] for name in loops}
    failed = set[str]()
    for number in range(options.rounds):
        for name in loops if number % 2 == 0 else reversed(loops):
            if name in failed:
                continue
            figures = run(loops[name], folder / ("samestep" if ":" in name else "plain"))
            if figures is None:
                failed.add(name)
                continue
            times[name].append(figures["p50"])
            print(f"round {number + 1}: {name} {json.dumps(figures)}", flush=True)
    ours, *plain = [name for name in loops if name not in failed]
    best = min(plain, key=lambda name: median(times[name]))
    ratio = statistics.estimate_paired_ratio(times[best], times[ours])
    print(f"{options.workload} batch {size}: {ours} {median(times[ours]):.4f} ms, {best} {median(times[best]):.4f} ms")
    print(f"{ours} / {best}: {ratio.estimate:.4f} ({ratio.low:.4f} to {ratio.high:.4f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("torch", "jax"), action="append")
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--batch-sizes", default="1,256")
    parser.add_argument("--tuning", default="tuned")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        for backend in options.backend or ("torch", "jax"):
            for size in map(int, options.batch_sizes.split(",")):
                beside(backend, size, options, Path(folder))


if __name__ == "__main__":
    main()
