"""Time samestep's tuned requests beside plain loops of the same framework, each in a fresh process.

Every round runs each loop once, and every other round runs them backwards. Programs come from a cache from the second
round on. A plain loop that is clearly slower than another in the first round runs no more. The ratio is of p50 to the
plain loop that is fastest over all rounds, with its 95 % interval.

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
SLOWER = 1.1
"""How much slower than the fastest plain loop another one may be in the first round, to run again."""
ON_A_CPU = {"torch": ("eager", "default", "freezing"), "jax": ("jit", "jit-constant-weights")}


def run(arguments: list[str], cache: Path, limit: float) -> dict[str, Any] | None:
    """Return the figures that a loop prints, None if it fails or takes more than `limit` seconds."""
    kept = {
        name: value
        for backend in ("jax", "torch")
        for name, value in variables.make_cache_environment(backend, cache, cache).items()
    }
    command = [sys.executable, "-m", "benchmarks.plain_requests", *arguments]
    environment = {**os.environ, **kept}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(arguments)} takes more than {limit:g} s", flush=True)
        return None
    if done.returncode:
        print(f"{' '.join(arguments)} failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def beside(backend: str, size: int, options: argparse.Namespace, folder: Path) -> None:
    """Run a framework's loops in turn and print their figures."""
    shape = ["--backend", backend, "--workload", options.workload, "--batch-size", str(size)]
    shape += ["--device", options.device, "--seconds", str(options.seconds)]
    modes = [mode for mode in (MODES if options.device == "cuda" else ON_A_CPU)[backend] if mode not in options.skip]
    loops = {f"{backend}:{options.tuning}": [*shape, "--ours", options.tuning]}
    loops |= {f"plain {backend}, {mode}": [*shape, "--mode", mode] for mode in modes}
    times: dict[str, list[float]] = {name: [] for name in loops}
    left_out = set[str]()
    ours, *plain = loops
    for number in range(options.rounds):
        for name in loops if number % 2 == 0 else reversed(loops):
            if name in left_out:
                continue
            figures = run(loops[name], folder / ("samestep" if ":" in name else "plain"), options.limit)
            if figures is None:
                left_out.add(name)
                continue
            times[name].append(figures["p50"])
            print(f"round {number + 1}: {name} {json.dumps(figures)}", flush=True)
        fastest = min((times[name][0] for name in plain if name not in left_out), default=0.0)
        left_out |= {name for name in plain if name not in left_out and times[name][0] > SLOWER * fastest}
    if ours in left_out or left_out.issuperset(plain):
        return
    best = min(set(plain) - left_out, key=lambda name: median(times[name]))
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
    parser.add_argument("--skip", action="append", default=[], help="a mode of the plain loops to leave out")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a loop's single requests at most")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a loop's process at most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        for backend in options.backend or ("torch", "jax"):
            for size in map(int, options.batch_sizes.split(",")):
                beside(backend, size, options, Path(folder))


if __name__ == "__main__":
    main()
