"""The definitions of the four memory figures, and the bytes of a process as the machine counts them."""

import contextlib
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from compare.machine import nvml

DEFINITIONS: Mapping[str, str] = {
    "live_peak_bytes": "most bytes of tensors and workspaces in use at once, by the framework's own allocator; "
    "searches for kernels do not count",
    "pool_peak_bytes": "most bytes that this allocator had reserved from the device; searches for kernels do not count",
    "process_bytes": "bytes of the whole process (a GPU's by NVML, a CPU's as peak resident set), less those of a "
    "process that only imports the framework; with several processes or GPUs, those of the first process on its "
    "fullest GPU",
    "static_bytes": "the compiler's own plan for one step: arguments, outputs and temporaries (XLA only)",
}


def read_process_bytes(device: str) -> int | None:
    """Return the bytes of this process: its device memory by NVML on `cuda`, its peak resident set on `cpu`.

    Return None if NVML does not list the process. A container or virtual machine may hide process ids.
    """
    if device == "cuda":
        return nvml.read_process_bytes(os.getpid())
    if sys.platform == "linux":
        # Not ru_maxrss: it never falls below the resident set of the process that started this one (getrusage(2)).
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read_device_bytes(device: str) -> int | None:
    """Return the memory of the GPU that contenders train on.

    Return None if NVML does not report it, if the GPU is divided (MIG), and on `cpu`, where processes share memory.
    """
    gpu = nvml.find_first(nvml.describe()["gpus"]) if device == "cuda" else None
    return None if gpu is None or gpu["mig"] else gpu["memory_bytes"]


def reset_peak() -> None:
    """Reset this process's peak resident set to its present one, on Linux only (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
