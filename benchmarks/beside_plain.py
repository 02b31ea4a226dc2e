"""Time samestep's tuned contenders beside the plain loops of the same framework.

Every figure comes from a fresh process. A round runs each loop once, and every other round runs them backwards.
From the second round on, programs and kernel choices come from a cache. The ratio is to the plain loop that is fastest
over all rounds, with its 95 % interval. `--devices N` times each way to train on N devices beside the plain loop of
that way.

    python -m benchmarks.beside_plain --workload resnet50 --rounds 3
    python -m benchmarks.beside_plain --workload resnet50 --devices 2
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from compare.base import statistics
from compare.base.workloads import WORKLOADS
from compare.machine import variables

LOOPED = tuple(name for name in WORKLOADS if name not in ("digits-cnn", "mnist-cnn"))
"""The workloads that the plain loops train."""
PLAIN: Mapping[str, Sequence[Sequence[str]]] = {
    "torch": (("--mode", "compile"), ("--mode", "reduce-overhead"), ("--mode", "graph")),
    "jax": (("--scan", "1"), ("--scan", "50"), ("--scan", "50", "--command-buffers")),
}
ON_A_CPU: Mapping[str, Sequence[Sequence[str]]] = {
    "torch": (("--mode", "eager"), ("--mode", "compile")),
    "jax": (("--scan", "1"),),
}
# Each way with the batch norm of its plain loop. A program over the whole batch takes the statistics of that batch.
WAYS: Mapping[str, tuple[str, str]] = {"ddp": ("torch", "local"), "pmap": ("jax", "local"), "sharded": ("jax", "sync")}


def milliseconds(command: Sequence[str], cache: Path) -> float:
    """Return the step time that a loop prints. Its programs are kept in `cache`."""
    kept = variables.make_cache_environment("jax", cache, cache) | variables.make_cache_environment(
        "torch", cache, cache
    )
    environment = {**os.environ, **kept}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["milliseconds"]


def commands(backend: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the commands of a framework's loops by name, samestep's first."""
    shape = _shape(options)
    ours = f"{backend}:tuned"
    place = ["--device", options.device]
    loops = {ours: ["-m", "benchmarks.step_time", "--backend", backend, *shape, *place]}
    plain = [f"benchmarks/plain_{backend}.py", *shape]
    if backend == "torch":  # JAX's loop takes the device that is there
        plain += place
    for mode in (PLAIN if options.device == "cuda" else ON_A_CPU)[backend]:
        loops[f"plain {backend}, {' '.join(mode)}"] = [*plain, *mode]
    return loops


def over_devices(way: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the commands of the loops that train on several devices in one way, samestep's first."""
    backend, batch_norm = WAYS[way]
    count = str(options.devices)
    shape = _shape(options)
    place = ["--device", options.device]
    ours = ["-m", "benchmarks.step_time", "--backend", backend, "--tuning", f"tuned+{way}", "--batch-norm", batch_norm]
    if way == "ddp":
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
        plain = [*start, "benchmarks/plain_torch.py", *shape, *place]
    else:
        plain = ["benchmarks/plain_jax.py", *shape, "--devices", count, "--parallel", way]
    return {f"{backend}:tuned+{way}": [*ours, *shape, *place, "--devices", count], f"plain {backend}, {way}": plain}


def _shape(options: argparse.Namespace) -> list[str]:
    size = [] if options.batch_size is None else ["--batch-size", str(options.batch_size)]
    return ["--workload", options.workload, *size]


def beside(loops: dict[str, list[str]], options: argparse.Namespace, folder: Path) -> None:
    """Run the loops in turn, samestep's first, and print their step times. Caches lie in the folder."""
    ours, *plain = loops
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(options.rounds):
        for name in loops if number % 2 == 0 else reversed(loops):
            times[name].append(milliseconds(loops[name], folder / ("samestep" if name == ours else "plain")))
            print(f"round {number + 1}: {name} {times[name][-1]:.4f} ms", flush=True)
    best = min(plain, key=lambda name: median(times[name]))
    ratio = statistics.estimate_paired_ratio(times[best], times[ours])
    for name, rounds in times.items():
        print(f"{options.workload} {name:28} {median(rounds):9.4f} ms per step  {rounds}", flush=True)
    print(f"{ours} / {best}: {ratio.estimate:.4f} ({ratio.low:.4f} to {ratio.high:.4f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("torch", "jax"), action="append", help="one framework alone")
    parser.add_argument("--workload", choices=LOOPED, default="cifar-cnn")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: an interval needs 2 and more")

    backends = options.backend or list(PLAIN)
    if options.devices == 1:
        groups = [commands(backend, options) for backend in backends]
    else:
        groups = [over_devices(way, options) for way, (backend, _) in WAYS.items() if backend in backends]
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        for loops in groups:
            beside(loops, options, Path(folder))


if __name__ == "__main__":
    main()
