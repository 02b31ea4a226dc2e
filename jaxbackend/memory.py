"""Memory: the peaks of JAX's allocator, its limit, XLA's plan, and the errors of exhausted memory."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from compare.base.interface import Memory, Refused

# On a CPU, dispatching may meet exhausted memory as an INTERNAL error. The driver and its libraries have messages of
# their own, beside those of XLA's allocator.
_MESSAGES = (
    "RESOURCE_EXHAUSTED",
    "Out of memory allocating",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def report(devices: Sequence[Any], lowered: Callable[[], jax.stages.Lowered] | None, constant_bytes: int = 0) -> Memory:
    """Return the allocator's peaks (device.memory_stats) and the static plan of one step.

    Peaks are those of the device with the highest, read before `lowered` is compiled for the plan, because a search for
    kernels takes memory. The plan adds up arguments, outputs and temporaries, with aliased (donated) bytes counted once
    (jax.stages.Compiled.memory_analysis), and the `constant_bytes` that the program holds.
    """
    stats = [counts for device in devices if (counts := device.memory_stats())]
    plan = lowered().compile().memory_analysis() if lowered is not None else None
    absent: dict[str, str] = {}
    if not stats:
        reason = f"jax has no allocator statistics on {devices[0].platform}"
        absent["live_peak_bytes"] = absent["pool_peak_bytes"] = reason
    if plan is None:
        absent["static_bytes"] = "the step is not compiled as a whole"
    return Memory(
        live_peak_bytes=_most(counts.get("peak_bytes_in_use") for counts in stats),
        pool_peak_bytes=_most(counts.get("peak_pool_bytes", counts.get("pool_bytes")) for counts in stats),
        static_bytes=None if plan is None else _static(plan) + constant_bytes,
        absent=absent,
    )


def limit(device: Any, limit_bytes: int | None) -> None:
    """Check that JAX's allocator takes at most so many bytes of a GPU: XLA_CLIENT_MEM_FRACTION, set before the start.

    On a CPU the worker limits the whole process (`compare.worker.process_memory`).

    Raises:
        Refused: the allocator has another limit, or none as with XLA_PYTHON_CLIENT_ALLOCATOR=platform.
    """
    if limit_bytes is None or device.platform == "cpu":
        return
    present = (device.memory_stats() or {}).get("bytes_limit")
    if present is None or present > limit_bytes:
        raise Refused(
            f"jax's allocator has the limit {present} bytes, not {limit_bytes}; unset XLA_PYTHON_CLIENT_ALLOCATOR"
        )


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of JAX means that memory ran out, also if another error has wrapped that error."""
    if isinstance(error, jax.errors.JaxRuntimeError) and any(words in str(error) for words in _MESSAGES):
        return True
    inner = error.__cause__ or error.__context__
    return inner is not None and out_of_memory(inner)


def _most(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _static(plan: Any) -> int:
    sizes = plan.argument_size_in_bytes, plan.output_size_in_bytes, plan.temp_size_in_bytes
    return sum(sizes) - plan.alias_size_in_bytes
