"""How a training step is turned into a program: the knobs' mechanisms."""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from compare.base.interface import KnobValues, RunSpec
from jaxbackend.only import flags
from jaxbackend.only.split_programs import Pieces
from jaxbackend.precision import Policy

# Without this pass, XLA's compiler for CPUs keeps a block's second computation, as its compiler for GPUs does. The pass
# removes the barrier between both computations, and XLA merges them (jaxlib 0.10).
_CPU_KEEPS_APART = {"xla_disable_hlo_passes": "cse_barrier_expander"}

# XLA then times no kernels. XLA_FLAGS hold for all programs of a process, and the user's own flags win.
_NO_SEARCH = {"xla_gpu_autotune_level": 0}

_DEBUGGING = ("jax_debug_nans", "jax_debug_infs", "jax_enable_checks", "jax_disable_most_optimizations")


def compile_step(step: Callable[..., Any], knobs: KnobValues, platform: str) -> Callable[..., Any]:
    """Return `step(state, ...)` compiled as one XLA program or in pieces, or as it is, as the knobs say.

    One program donates its state if the knobs say so.
    """
    if not knobs["compile"]:
        return step
    if knobs["pieces"]:
        return Pieces(step)
    return jax.jit(step, donate_argnums=(0,) if knobs["donation"] else (), compiler_options=_options(knobs, platform))


def prepare(knobs: KnobValues, device: Any) -> None:
    """Run one small convolution on a device, so that cuDNN has started before a program is captured as a graph.

    Otherwise the first captured convolution of a cached program fails with "No DNN support for stream" (jax 0.11.2),
    if nothing has run on that device yet.
    """
    if knobs["graph-capture"] and device.platform != "cpu":
        image, kernel = jax.device_put((np.ones((1, 4, 8, 8), np.float32), np.ones((4, 4, 3, 3), np.float32)), device)
        jax.lax.conv(image, kernel, (1, 1), "SAME").block_until_ready()


def read_settings(spec: RunSpec, policy: Policy, device: Any, *, compiled: bool) -> dict[str, Any]:
    """Return what the switches of this process are now. `compiled` tells whether its step is compiled."""
    mixed = policy.compute_dtype != policy.parameter_dtype
    return {
        "graph-capture": compiled and flags.captures_convolutions(device),
        "concurrent-kernels": compiled and flags.runs_concurrently(device),
        "kernel-search": flags.searches_kernels(device, wanted=bool(spec.knobs["kernel-search"])),
        "inline-dispatch": flags.dispatches_inline(device),
        "excess_precision": compiled and mixed and flags.excess_precision(),
        "deterministic": spec.deterministic and flags.deterministic(device),
        "debugging": [name for name in _DEBUGGING if jax.config.values[name]],
    }


def _options(knobs: KnobValues, platform: str) -> dict[str, Any] | None:
    if platform == "cpu":
        return _CPU_KEEPS_APART if knobs["rematerialisation"] else None
    searches = knobs["kernel-search"] or "xla_gpu_autotune_level" in os.environ.get("XLA_FLAGS", "")
    return None if searches else _NO_SEARCH
