"""Work and memory of a known size, with which `samestep selftest` checks measurements."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

# A pass takes some 0.13 ms on an H200. This is short beside the delay, and too long for 1,024 launches in 0.1 s, which
# would fill the queue and make the host wait. An iteration of the loop launches three kernels of its own. Passes over
# memory take the same time on a warm GPU, unlike matrix products, because power limits the clocks of the cores.
_NUMBERS, _FIRST_PASSES, _PASSES_IN_AN_ITERATION = 2**26, 100, 16


def delay(seconds: float, device: str) -> Callable[[], None] | None:
    """Return a function that queues so many seconds of work on the GPU and does not wait for it.

    The work is passes over memory. None on a CPU.
    """
    if device != "cuda":
        return None
    numbers = jnp.zeros(_NUMBERS)
    count = _FIRST_PASSES
    _duration(numbers, count)  # the first call with a count compiles
    for _ in range(3):
        count = max(1, round(count * seconds / _duration(numbers, count)))
        _duration(numbers, count)

    def busy() -> None:
        _passes(numbers, count)

    return busy


def ballast(size: int, device: str) -> Any:
    """Return an object that holds `size` bytes of device memory. Every page is written."""
    return jnp.ones(size, dtype=jnp.uint8, device=jax.devices(device)[0]).block_until_ready()


@partial(jax.jit, static_argnums=1)
def _passes(numbers: jax.Array, count: int) -> jax.Array:
    def one(_: int, numbers: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(numbers + 1)  # otherwise the compiler would merge several passes

    return jax.lax.fori_loop(0, count, one, numbers, unroll=min(count, _PASSES_IN_AN_ITERATION))


def _duration(numbers: jax.Array, count: int) -> float:
    numbers.block_until_ready()
    start = time.perf_counter()
    _passes(numbers, count).block_until_ready()
    return time.perf_counter() - start
