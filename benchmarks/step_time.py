"""Step time of one contender in one process, on one device or several: a screening, no claim.

python -m benchmarks.step_time --backend jax --tuning tuned+sharded --devices 2 [--turn FILE]

With `--turn`, it holds the lock of FILE with others while it compiles, and alone while it is timed: contenders started
together compile side by side, and are then timed one after the other. On one GPU their searches for the fastest kernels
then disturb one another.
"""

import argparse
import contextlib
import fcntl
import json
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks import in_process
from compare import workloads

_BLOCKS = 11
_BLOCK_SECONDS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("jax", "torch"), required=True)
    parser.add_argument("--tuning", required=True)
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--batch-size", type=int, help="images per step and device")
    parser.add_argument("--batch-norm", default="sync")
    parser.add_argument("--turn", type=Path)
    asked = parser.parse_args()
    with asked.turn.open("a") if asked.turn else contextlib.nullcontext() as turn:
        _hold(turn, fcntl.LOCK_SH)
        print(json.dumps(_timed(asked, turn)), flush=True)


def _timed(asked: argparse.Namespace, turn: IO[str] | None) -> dict[str, Any]:
    """Return what a step takes, in the words of the plain loops."""
    size = asked.devices * (asked.batch_size or workloads.get(asked.workload).batch_size)
    worker = in_process.opened(
        asked.backend,
        asked.tuning,
        asked.workload,
        precision=asked.precision,
        device=asked.device,
        batch_size=size,
        devices=asked.devices,
        batch_norm=asked.batch_norm,
    )
    first = worker.warm_up(0.1, None)["first_step_seconds"]
    _hold(turn, fcntl.LOCK_EX)
    steps = worker.warm_up(_BLOCK_SECONDS, None)["steps_per_block"]
    seconds = float(np.median([worker.block(steps) for _ in range(_BLOCKS)])) / steps
    return {
        "loop": f"{asked.backend}:{asked.tuning}",
        "workload": asked.workload,
        "precision": asked.precision,
        "devices": asked.devices,
        "batch_norm": asked.batch_norm,
        "batch_size": size,
        "milliseconds": round(1e3 * seconds, 4),
        "first_step_seconds": round(first, 1),
    }


def _hold(turn: IO[str] | None, how: int) -> None:
    if turn is not None:
        fcntl.flock(turn, how)


if __name__ == "__main__":
    main()
