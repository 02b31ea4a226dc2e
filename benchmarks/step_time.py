"""Step time of one contender in one process, on one device or several: a screening, no claim.

    python -m benchmarks.step_time --backend jax --tuning tuned+sharded --devices 2 [--turn FILE]
    XLA_FLAGS=--xla_gpu_autotune_level=5 python -m benchmarks.step_time --backend jax --workload unet --kernels

With `--lever`, the contender is changed as benchmarks/levers.py has it. With `--turn`, it holds the lock of FILE with
others while it compiles, and alone while it is timed: contenders started together compile side by side, and are then
timed one after the other, `--turns` times each: what a machine does meanwhile meets all of them. On one GPU their
searches for the fastest kernels then disturb one another.
"""

import argparse
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks import in_process, kernel_times
from benchmarks.levers import LEVER_VARIABLE, LEVERS
from compare.base import process_family, process_group, workloads
from compare.base.interface import DEVICES
from compare.base.precisions import PRECISIONS
from compare.base.workloads import WORKLOADS
from compare.worker.server import Worker

_BLOCKS = 15
_BLOCK_SECONDS = 0.3
_PROFILED_STEPS = 10
_BETWEEN_TURNS = 0.5  # seconds in which the others, if they wait, have theirs


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
    parser.add_argument("--lever", choices=tuple(LEVERS), nargs="+", default=["none"], help="one or several")
    parser.add_argument(
        "--kernels", type=int, nargs="?", const=25, help="profile some steps, print their longest kernels"
    )
    parser.add_argument("--turn", type=Path)
    parser.add_argument("--turns", type=int, default=1, help="how often it is timed, for the median of them all")
    asked = parser.parse_args()
    for lever in asked.lever:
        LEVERS[lever]()
    if asked.backend == "torch":
        _pass_on(asked.lever)
    with asked.turn.open("a") if asked.turn else contextlib.nullcontext() as turn:
        _hold(turn, fcntl.LOCK_SH)
        worker, size = _opened(asked)
        first = worker.warm_up(0.1, None)["first_step_seconds"]
        turns = []
        for number in range(asked.turns):
            if number:
                _hold(turn, fcntl.LOCK_UN)
                time.sleep(_BETWEEN_TURNS)
            _hold(turn, fcntl.LOCK_EX)
            turns.append(_timed(worker))
        found = _over(turns)
        told = {
            "loop": f"{asked.backend}:{asked.tuning}",
            "workload": asked.workload,
            "precision": asked.precision,
            "lever": " ".join(asked.lever),
            "devices": asked.devices,
            "batch_norm": asked.batch_norm,
            "batch_size": size,
        }
        print(json.dumps({**told, **found, "first_step_seconds": round(first, 1)}), flush=True)
        if asked.kernels:
            print(_kernels(worker, found["milliseconds"] / 1e3, asked.kernels), flush=True)


def _pass_on(levers: Sequence[str]) -> None:
    """Have the other processes of a contender change, too: torch has one for each device."""
    os.environ[LEVER_VARIABLE] = " ".join(levers)
    plain = process_group.start_command

    def levered(package: str, *told: Any) -> list[str]:
        own = plain(package, *told)
        return process_family.module_command("benchmarks.levered_rank", *own[own.index(package) + 1 :])

    process_group.start_command = levered


def _opened(asked: argparse.Namespace) -> tuple[Worker, int]:
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
    return worker, size


def _timed(worker: Worker) -> dict[str, Any]:
    """Return what a step takes, in the words of the plain loops."""
    warm = worker.warm_up(_BLOCK_SECONDS, None)
    steps = warm["steps_per_block"]
    blocks = [worker.block(steps) / steps for _ in range(_BLOCKS)]
    losses = worker._open_session.losses()
    if not np.isfinite(losses).all():
        raise SystemExit("the loss is not finite: what was timed are products of numbers that are none")
    figures = {"milliseconds": float(np.median(blocks)), "fastest": min(blocks), "slowest": max(blocks)}
    return {name: round(1e3 * value, 4) for name, value in figures.items()} | {"steady": warm["steady"]}


def _over(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of several turns as one, the step time of each beside them."""
    if len(turns) == 1:
        return dict(turns[0])
    each = [turn["milliseconds"] for turn in turns]
    return {
        "milliseconds": round(float(np.median(each)), 4),
        "fastest": min(turn["fastest"] for turn in turns),
        "slowest": max(turn["slowest"] for turn in turns),
        "steady": all(turn["steady"] for turn in turns),
        "turns": each,
    }


def _kernels(worker: Worker, seconds: float, count: int) -> str:
    session = worker._open_session
    steps = max(_PROFILED_STEPS, session.steps_per_dispatch)
    kernels = session.kernels(steps)
    first = min((kernel.device for kernel in kernels), default="")
    return kernel_times.table([each for each in kernels if each.device == first], steps, seconds, count)


def _hold(turn: IO[str] | None, how: int) -> None:
    if turn is not None:
        fcntl.flock(turn, how)


if __name__ == "__main__":
    main()
