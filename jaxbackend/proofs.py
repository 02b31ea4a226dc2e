"""Work and memory of a known size, planted by `samestep selftest` to see whether they are measured."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

# A product takes some 0.15 ms of an H200: short beside the delay, and too few fit into 0.1 s to fill the queue of 1,024
# launches, behind which the host would wait. An iteration of the loop launches three kernels of its own.
_SIDE, _FIRST_PRODUCTS, _PRODUCTS_IN_AN_ITERATION = 3072, 100, 16


def delay(seconds: float, device: str) -> Callable[[], None] | None:
    """Return a function that keeps the GPU busy for so long after what is queued, without waiting for it.

    It multiplies matrices, as often as takes that long. None on a CPU.
    """
    if device != "cuda":
        return None
    matrix = jnp.full((_SIDE, _SIDE), 1 / _SIDE)
    count = _FIRST_PRODUCTS
    _duration(matrix, count)  # the first of each count compiles
    for _ in range(3):
        count = max(1, round(count * seconds / _duration(matrix, count)))
        _duration(matrix, count)

    def busy() -> None:
        _products(matrix, count)

    return busy


def ballast(size: int, device: str) -> Any:
    """Return an object that holds `size` bytes of device memory, every page of them written."""
    return jnp.ones(size, dtype=jnp.uint8, device=jax.devices(device)[0]).block_until_ready()


@partial(jax.jit, static_argnums=1)
def _products(matrix: jax.Array, count: int) -> jax.Array:
    unroll = min(count, _PRODUCTS_IN_AN_ITERATION)
    return jax.lax.fori_loop(0, count, lambda _, product: product @ matrix, matrix, unroll=unroll)


def _duration(matrix: jax.Array, count: int) -> float:
    matrix.block_until_ready()
    start = time.perf_counter()
    _products(matrix, count).block_until_ready()
    return time.perf_counter() - start
