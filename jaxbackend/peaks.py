"""The bandwidth and the dense peak that simple loops reach on a device, in JAX."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from compare.base.profiles import Peaks
from jaxbackend.precision import Policy

_SIDES = {"cpu": 1536, "gpu": 8192}
_BYTES = {"cpu": 2**27, "gpu": 2**30}
_REPEATS, _TRIES = 4, 4


def measure(policy: Policy, device: Any) -> Peaks:
    """Return the peaks of a device at a precision: of a large copy, and of a large product of matrices."""
    side, size = _SIDES[device.platform], _BYTES[device.platform]
    # The copy goes to and fro between two arrays. New memory would cost a CPU more than the copy.
    swap = jax.jit(lambda x, y: (y, x + jnp.float32(1)), donate_argnums=(0, 1))
    product = jax.jit(lambda x: (x @ x) * (1 / x.shape[0]))
    with policy.scope(), jax.default_device(device):
        values = jnp.ones(size // 4, jnp.float32), jnp.ones(size // 4, jnp.float32)
        seconds = _time(lambda pair: swap(*pair), values)
        del values
        matrix = jnp.ones((side, side), policy.compute_dtype)
        return Peaks(2 * size / seconds, 2 * side**3 / _time(product, matrix))


def _time(function: Callable[[Any], Any], argument: Any) -> float:
    """Return the least seconds of one call. A call gets the result of the call before."""
    result = jax.block_until_ready(function(argument))
    tries = list[float]()
    for _ in range(_TRIES):
        start = time.perf_counter()
        for _ in range(_REPEATS):
            result = function(result)
        jax.block_until_ready(result)
        tries.append((time.perf_counter() - start) / _REPEATS)
    return min(tries)
