"""Memory: what torch's allocator says, and which errors mean that memory ran out."""

import torch

from compare.interface import Memory


def report(device: torch.device) -> Memory:
    """Return the allocator's peaks (torch.cuda.max_memory_allocated, max_memory_reserved)."""
    absent = {"static_bytes": "torch has no static plan of a step"}
    if device.type != "cuda":
        absent["live_peak_bytes"] = absent["pool_peak_bytes"] = f"torch has no allocator statistics on {device.type}"
        return Memory(absent=absent)
    return Memory(
        live_peak_bytes=torch.cuda.max_memory_allocated(device),
        pool_peak_bytes=torch.cuda.max_memory_reserved(device),
        absent=absent,
    )


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch means that memory ran out."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
