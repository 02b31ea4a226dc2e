"""JAX's gradients are reduced over devices in buckets, as DistributedDataParallel's are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbackend import exchange, parallel


def _mean(tree: Any) -> tuple[Any, int]:
    """Return the mean over the one device that is there, and how many reductions make it."""
    mapped = jax.pmap(lambda tree: exchange.mean(tree, parallel.AXIS), parallel.AXIS, out_axes=None)
    parts = jax.tree.map(lambda array: array[None], tree)
    return mapped(parts), mapped.lower(parts).as_text().count("stablehlo.all_reduce")


TREE = {
    "kernel": jnp.arange(216, dtype=jnp.float32).reshape(3, 3, 4, 6),
    "dense": jnp.arange(24, dtype=jnp.float32).reshape(4, 6),
    "bias": [jnp.arange(6, dtype=jnp.float32), jnp.float32(0.5)],
}


@pytest.mark.parametrize(("size", "reductions"), [(2**20, 1), (80, 2), (4, 4)])
def test_arrays_are_reduced_together_up_to_the_size_of_a_bucket(
    monkeypatch: pytest.MonkeyPatch, size: int, reductions: int
):
    monkeypatch.setattr(exchange, "_BUCKET_BYTES", size)
    found, count = _mean(TREE)
    jax.tree.map(np.testing.assert_array_equal, found, TREE)
    assert count == reductions


def test_arrays_of_different_dtypes_are_reduced_apart():
    found, count = _mean(TREE | {"last": jnp.zeros(2, jnp.float16)})
    assert found["last"].dtype == jnp.float16
    assert count == 2
