"""What the four memory figures mean, and the bytes that a process holds as the machine counts them."""

import importlib
import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

DEFINITIONS: Mapping[str, str] = {
    "live_peak_bytes": "most bytes held by live tensors at any time, counted by the framework's own allocator",
    "pool_peak_bytes": "most bytes that the framework's allocator had reserved from the device",
    "process_bytes": "bytes of the whole process (NVML on a GPU, peak resident set on a CPU), less those of a process "
    "that only imports the framework",
    "static_bytes": "the compiler's own plan for one step: arguments, outputs and temporaries (XLA only)",
}


def process_bytes(device: str) -> int | None:
    """Return the bytes of this process: its device memory by NVML on `cuda`, its peak resident set on `cpu`.

    None where NVML does not list the process (a container or virtual machine may hide process ids).
    """
    if device == "cuda":
        return _device_bytes(os.getpid())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _device_bytes(pid: int) -> int | None:
    pynvml: Any = importlib.import_module("pynvml")  # here: a CPU worker has no use for it; it has no types
    pynvml.nvmlInit()
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == pid:
                    return process.usedGpuMemory
        return None
    finally:
        pynvml.nvmlShutdown()
