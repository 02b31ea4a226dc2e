"""Memory: what JAX's allocator and XLA's plan say, and which errors mean that memory ran out."""

from typing import Any

import jax

from compare.interface import Memory


def report(device: Any, compiled: Any) -> Memory:
    """Return the allocator's peaks (device.memory_stats) and the static plan of one compiled step.

    The plan is arguments, outputs and temporaries, aliased (donated) bytes counted once
    (jax.stages.Compiled.memory_analysis).
    """
    stats, plan = device.memory_stats() or {}, compiled.memory_analysis() if compiled is not None else None
    absent: dict[str, str] = {}
    if not stats:
        absent["live_peak_bytes"] = absent["pool_peak_bytes"] = f"jax has no allocator statistics on {device.platform}"
    if plan is None:
        absent["static_bytes"] = "the step is not compiled"
    return Memory(
        live_peak_bytes=stats.get("peak_bytes_in_use"),
        pool_peak_bytes=stats.get("peak_pool_bytes", stats.get("pool_bytes")),
        static_bytes=None if plan is None else _static(plan),
        absent=absent,
    )


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of JAX means that memory ran out."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def _static(plan: Any) -> int:
    sizes = plan.argument_size_in_bytes, plan.output_size_in_bytes, plan.temp_size_in_bytes
    return sum(sizes) - plan.alias_size_in_bytes
