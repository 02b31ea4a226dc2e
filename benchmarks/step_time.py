"""Print the step time of one contender in one process: a quick look, without a certificate.

python -m benchmarks.step_time --backend jax --tuning tuned+sharded --devices 2
XLA_FLAGS=--xla_gpu_autotune_level=5 python -m benchmarks.step_time --backend jax --workload unet --kernels
"""

import argparse
import json
from typing import Any

import numpy as np

from benchmarks import in_process, kernel_times
from compare.base import workloads
from compare.base.interface import DEVICES
from compare.base.precisions import PRECISIONS
from compare.base.workloads import WORKLOADS
from compare.worker.worker import Worker

_BLOCKS = 15
_BLOCK_SECONDS = 0.3
_PROFILED_STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("jax", "torch"), required=True)
    parser.add_argument("--tuning", default="tuned")
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="resnet50")
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument("--device", choices=[name for name in DEVICES if name != "auto"], default="cuda")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--batch-size", type=int, help="images per step and device")
    parser.add_argument("--batch-norm", default="sync")
    parser.add_argument(
        "--kernels", type=int, nargs="?", const=25, help="profile some steps, print the longest kernels"
    )
    options = parser.parse_args()
    batch_size = options.devices * (options.batch_size or workloads.get(options.workload).batch_size)
    worker = in_process.open_worker(
        options.backend,
        options.tuning,
        options.workload,
        precision=options.precision,
        device=options.device,
        batch_size=batch_size,
        devices=options.devices,
        batch_norm=options.batch_norm,
    )
    first = worker.warm_up(0.1, None).first_step_seconds
    times = measure(worker)
    settings = {
        "loop": f"{options.backend}:{options.tuning}",
        "workload": options.workload,
        "precision": options.precision,
        "devices": options.devices,
        "batch_norm": options.batch_norm,
        "batch_size": batch_size,
    }
    print(json.dumps({**settings, **times, "first_step_seconds": round(first, 1)}), flush=True)
    if options.kernels:
        print(kernel_table(worker, times["milliseconds"] / 1e3, options.kernels), flush=True)


def measure(worker: Worker) -> dict[str, Any]:
    """Return milliseconds per step under the keys that the plain loops print.

    Raises:
        SystemExit: if the loss is not finite. Products of NaN draw less power and run faster.
    """
    warm = worker.warm_up(_BLOCK_SECONDS, None)
    steps = warm.steps_per_block
    blocks = [worker.block(steps) / steps for _ in range(_BLOCKS)]
    if not np.isfinite(worker._open_session.losses()).all():
        raise SystemExit("the loss is not finite: the step time would be that of products of NaN")
    figures = {"milliseconds": float(np.median(blocks)), "fastest": min(blocks), "slowest": max(blocks)}
    return {name: round(1e3 * seconds, 4) for name, seconds in figures.items()} | {"steady": warm.steady}


def kernel_table(worker: Worker, step_seconds: float, count: int) -> str:
    """Return the longest kernels of some steps on the first device."""
    session = worker._open_session
    steps = max(_PROFILED_STEPS, session.steps_per_dispatch)
    kernels = session.kernels(steps)
    first = min((kernel.device for kernel in kernels), default="")
    return kernel_times.table([kernel for kernel in kernels if kernel.device == first], steps, step_seconds, count)


if __name__ == "__main__":
    main()
