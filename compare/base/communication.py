"""Measure the communication between devices that computation does not hide, from profiled kernels. Pure functions."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from compare.base.interface import Kernel

DEFINITION = (
    "time per step in which a device runs kernels of communication and no other, waiting for other devices in them "
    "included; mean over devices, from the framework's own profiler"
)
STEPS = 10
"""Training steps to profile, or one dispatch if that has more."""

# NCCL's kernels carry its name. XLA's own one-shot exchange is AllReduceKernelImpl.
_COMMUNICATION = re.compile(r"nccl|all_?reduce|all_?gather|all_?to_?all|reduce_?scatter", re.IGNORECASE)


@dataclass(frozen=True)
class Communication:
    """Communication between devices that computation does not hide.

    Attributes:
        exposed_seconds: seconds per step, or None.
        steps: the number of profiled steps, or None.
        reason: why there is no figure, or None.
    """

    exposed_seconds: float | None = None
    steps: int | None = None
    reason: str | None = None


def measure(kernels: Sequence[Kernel], steps: int) -> Communication:
    """Return the exposed communication of `steps` training steps on several devices.

    If there is no kernel of communication, the profiler has missed some, as JAX's does in a replayed loop.
    """
    if not kernels:
        return Communication(reason="the framework's profiler showed no kernels of a device")
    if not any(_COMMUNICATION.search(kernel.name) for kernel in kernels):
        return Communication(
            reason="the framework's profiler showed kernels of devices, but none of communication between them"
        )
    return Communication(compute_exposed_seconds(kernels, steps), steps)


def compute_exposed_seconds(kernels: Sequence[Kernel], steps: int) -> float:
    """Return the seconds per step in which a device only communicates, as the mean over devices.

    Args:
        kernels: the kernels of all devices, at least one for each device.
        steps: the number of training steps that the kernels belong to.
    """
    devices = sorted({kernel.device for kernel in kernels})
    seconds = [_exposed_on_device([kernel for kernel in kernels if kernel.device == device]) for device in devices]
    return sum(seconds) / len(devices) / steps


def busy_seconds(kernels: Sequence[Kernel], steps: int) -> float:
    """Return the seconds per step in which a device runs at least one kernel, as the mean over devices."""
    devices = sorted({kernel.device for kernel in kernels})
    seconds = [_covered(kernel for kernel in kernels if kernel.device == device) for device in devices]
    return sum(seconds) / len(devices) / steps


def _exposed_on_device(kernels: Sequence[Kernel]) -> float:
    others = [kernel for kernel in kernels if not _COMMUNICATION.search(kernel.name)]
    return max(0.0, _covered(kernels) - _covered(others))


def _covered(kernels: Iterable[Kernel]) -> float:
    """Return the seconds in which at least one of the kernels runs."""
    spans = np.array(sorted((kernel.begin, kernel.end) for kernel in kernels)).reshape(-1, 2)
    ends = np.maximum.accumulate(spans[:, 1])
    begins = np.maximum(spans[:, 0], np.concatenate([spans[:1, 0], ends[:-1]]))
    return float(np.maximum(0.0, ends - begins).sum())
