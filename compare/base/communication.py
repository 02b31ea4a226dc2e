"""Communication between devices that computation does not hide, from kernels that a profiler saw: pure functions."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from compare.base.interface import Kernel

DEFINITION = (
    "time per step in which a device runs kernels of communication and no other, waiting for other devices in them "
    "included; mean over devices, from the framework's own profiler"
)
STEPS = 10
"""Training steps that are profiled; more where one dispatch takes more."""

# NCCL's kernels carry its name; XLA's own one-shot exchange is AllReduceKernelImpl.
_COMMUNICATION = re.compile(r"nccl|all_?reduce|all_?gather|all_?to_?all|reduce_?scatter", re.IGNORECASE)


def absent(reason: str) -> dict[str, Any]:
    """Return the figures where there are none."""
    return {"exposed_seconds": None, "steps": None, "reason": reason}


def figures(kernels: Sequence[Kernel], steps: int) -> dict[str, Any]:
    """Return the figures of `steps` training steps on several devices, each of which communicates.

    Kernels without any of communication are those of a profiler that misses some, as JAX's does in a replayed loop.
    """
    if not kernels:
        return absent("the framework's profiler showed no kernels of a device")
    if not any(_COMMUNICATION.search(kernel.name) for kernel in kernels):
        return absent("the framework's profiler showed kernels of devices, but none of communication between them")
    return {"exposed_seconds": exposed_seconds(kernels, steps), "steps": steps, "reason": None}


def exposed_seconds(kernels: Sequence[Kernel], steps: int) -> float:
    """Return the seconds per step in which a device communicates and does nothing else, as the mean over devices.

    Args:
        kernels: what all devices carried out, at least one kernel each.
        steps: training steps that it was for.
    """
    devices = sorted({kernel.device for kernel in kernels})
    found = [_exposed([kernel for kernel in kernels if kernel.device == device]) for device in devices]
    return sum(found) / len(devices) / steps


def _exposed(kernels: Sequence[Kernel]) -> float:
    others = [kernel for kernel in kernels if not _COMMUNICATION.search(kernel.name)]
    return max(0.0, _covered(kernels) - _covered(others))


def _covered(kernels: Iterable[Kernel]) -> float:
    """Return the seconds in which at least one of the kernels runs."""
    spans = np.array(sorted((kernel.begin, kernel.end) for kernel in kernels)).reshape(-1, 2)
    ends = np.maximum.accumulate(spans[:, 1])
    begins = np.maximum(spans[:, 0], np.concatenate([spans[:1, 0], ends[:-1]]))
    return float(np.maximum(0.0, ends - begins).sum())
