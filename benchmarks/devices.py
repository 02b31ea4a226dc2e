"""Step times of one contender on several devices, in one process, its programs compiled before its turn comes.

python -m benchmarks.devices --backend jax --tuning tuned+sharded --devices 2 [--turn FILE]

With `--turn`, it compiles at once, and times when FILE is there and nobody else holds its lock: several contenders then
compile side by side and are timed one after the other.
"""

import argparse
import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import in_process
from compare import workloads

_BLOCKS = 11
_BLOCK_SECONDS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
    with turn(asked.turn):
        steps = worker.warm_up(_BLOCK_SECONDS, None)["steps_per_block"]
        seconds = float(np.median([worker.block(steps) for _ in range(_BLOCKS)])) / steps
    print(
        f"{asked.workload} {asked.backend}:{asked.tuning} {asked.precision} batch norm {asked.batch_norm}, "
        f"{asked.devices} devices, batch {size}: {1e3 * seconds:.3f} ms, {size / seconds:,.0f} images/s "
        f"(first step {first:.0f} s)",
        flush=True,
    )


@contextlib.contextmanager
def turn(file: Path | None) -> Iterator[None]:
    """Wait until the file is there, and hold its lock for the `with` block."""
    if file is None:
        yield
        return
    while not file.exists():
        time.sleep(0.1)
    with file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
