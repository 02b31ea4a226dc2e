"""How a training step is turned into a program: the knobs' mechanisms."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbackend.only.split_programs import Pieces
from jaxbackend.pixels import Images

# XLA's compiler for CPUs takes away what keeps a block's second computation apart from its first, and then merges the
# two (jaxlib 0.10); without that pass of its, it does as its compiler for GPUs does.
_CPU_KEEPS_APART = {"xla_disable_hlo_passes": "cse_barrier_expander"}

# XLA times no kernels for a program. XLA_FLAGS hold for all programs of a process, and the user has the last word.
_NO_SEARCH = {"xla_gpu_autotune_level": 0}


def compiled(step: Callable[..., Any], knobs: Mapping[str, Any], platform: str) -> Callable[..., Any]:
    """Return `step(state, ...)` as one XLA program, its state donated if the knobs say so, or in pieces."""
    if not knobs["compile"]:
        return step
    if knobs["pieces"]:
        return Pieces(step)
    return jax.jit(step, donate_argnums=(0,) if knobs["donation"] else (), compiler_options=_options(knobs, platform))


def prepare(knobs: Mapping[str, Any], device: Any) -> None:
    """Run one small convolution on a device, so that cuDNN is up there before a program is captured as a graph.

    Without it the first captured convolution fails with "No DNN support for stream" (jax 0.11.2) where the program
    comes from the cache: nothing has run there yet, as on further devices when XLA has searched on the first alone.
    """
    if knobs["graph-capture"] and device.platform != "cpu":
        image, kernel = jax.device_put((np.ones((1, 4, 8, 8), np.float32), np.ones((4, 4, 3, 3), np.float32)), device)
        jax.lax.conv(image, kernel, (1, 1), "SAME").block_until_ready()


def several(step: Callable[..., Any], knobs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return `steps-per-dispatch` steps over batches [P, N, ...] as a scan, yet to be compiled.

    `several(state, images, labels, start)` starts at batch `start` and returns the state and the losses. None where the
    knob is 1.
    """
    count = knobs["steps-per-dispatch"]
    if count == 1:
        return None

    def scan(state: Any, images: Images, labels: jax.Array, start: jax.Array) -> tuple[Any, jax.Array]:
        def body(state: Any, index: jax.Array) -> tuple[Any, jax.Array]:
            batch = (start + index) % len(images)
            return step(state, images[batch], labels[batch])

        return jax.lax.scan(body, state, jnp.arange(count, dtype=jnp.int32))

    return scan


def _options(knobs: Mapping[str, Any], platform: str) -> dict[str, Any] | None:
    if platform == "cpu":
        return _CPU_KEEPS_APART if knobs["rematerialisation"] else None
    searched = knobs["kernel-search"] or "xla_gpu_autotune_level" in os.environ.get("XLA_FLAGS", "")
    return None if searched else _NO_SEARCH
