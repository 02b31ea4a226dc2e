"""Work and memory of a known size, planted by `samestep selftest` to see whether they are measured."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

# A pass takes some 0.13 ms of an H200: short beside the delay, and too few fit into 0.1 s to fill the queue of 1,024
# launches, behind which the host would wait. An iteration of the loop launches three kernels of its own. Passes over
# memory last the same however warm the GPU is: clocks of its cores fall with the power that matrix products take.
_NUMBERS, _FIRST_PASSES, _PASSES_IN_AN_ITERATION = 2**26, 100, 16


def delay(seconds: float, device: str) -> Callable[[], None] | None:
    """Return a function that keeps the GPU busy for so long after what is queued, without waiting for it.

    It goes over memory, as often as takes that long. None on a CPU.
    """
    if device != "cuda":
        return None
    numbers = jnp.zeros(_NUMBERS)
    count = _FIRST_PASSES
    _duration(numbers, count)  # the first of each count compiles
    for _ in range(3):
        count = max(1, round(count * seconds / _duration(numbers, count)))
        _duration(numbers, count)

    def busy() -> None:
        _passes(numbers, count)

    return busy


def ballast(size: int, device: str) -> Any:
    """Return an object that holds `size` bytes of device memory, every page of them written."""
    return jnp.ones(size, dtype=jnp.uint8, device=jax.devices(device)[0]).block_until_ready()


@partial(jax.jit, static_argnums=1)
def _passes(numbers: jax.Array, count: int) -> jax.Array:
    def one(_: int, numbers: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(numbers + 1)  # or the compiler would make one pass of several

    return jax.lax.fori_loop(0, count, one, numbers, unroll=min(count, _PASSES_IN_AN_ITERATION))


def _duration(numbers: jax.Array, count: int) -> float:
    numbers.block_until_ready()
    start = time.perf_counter()
    _passes(numbers, count).block_until_ready()
    return time.perf_counter() - start
