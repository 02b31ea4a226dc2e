"""Memory: the peaks of torch's allocator, its limit, and the errors of exhausted memory."""

import torch

from compare.base.interface import Memory

# Messages of the host's allocator, the driver and its libraries, beside those of torch's own allocator.
_MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


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


def reset_peaks(device: torch.device) -> None:
    """Count memory peaks from now on. Before, cuDNN's search has taken memory that no step needs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def limit(device: torch.device, limit_bytes: int | None) -> None:
    """Let torch's allocator reserve at most so many bytes of a GPU (torch.cuda.set_per_process_memory_fraction).

    On a CPU the worker limits the whole process (`compare.worker.process_memory`).
    """
    if limit_bytes is None or device.type == "cpu":
        return
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch means that memory ran out, also if torch.compile has wrapped that error."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _MESSAGES):
        return True
    inner = error.__cause__ or error.__context__
    return inner is not None and out_of_memory(inner)
