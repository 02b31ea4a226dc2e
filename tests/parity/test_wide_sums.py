"""Sums of bfloat16 values in JAX: every term counts, also within inner programs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen

from jaxbackend.only import wide_sums

PIXELS = (4, 32, 32)  # 4,096 terms


def add_plainly(bias: jax.Array) -> jax.Array:
    return jnp.zeros((*PIXELS, *bias.shape), bias.dtype) + bias


def add_in_a_loop(bias: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda _, image: (None, image + bias), None, jnp.zeros((1, *PIXELS, 1), bias.dtype))[1]


def find_gradient(add: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], dict[str, Any]]:
    def gradient(bias: jax.Array) -> dict[str, Any]:
        with jax.named_scope("stem"):
            return {"gradient": jax.grad(lambda bias: add(bias).astype(jnp.float32).sum())(bias)}

    return gradient


@pytest.mark.parametrize("add", [add_plainly, jax.jit(add_plainly), jax.checkpoint(add_plainly), add_in_a_loop])
def test_every_pixel_counts_in_the_gradient_of_a_bias(add: Callable[[jax.Array], jax.Array]) -> None:
    sums = list[tuple[str, int]]()
    gradient = find_gradient(add)
    bias = jnp.zeros(1, jnp.bfloat16)
    wide = jax.jit(wide_sums.widen(gradient, lambda *each: sums.append(each)))(bias)
    assert wide["gradient"].dtype == jnp.bfloat16
    assert float(wide["gradient"][0]) == 4096
    assert float(jax.jit(gradient)(bias)["gradient"][0]) < 4096  # what XLA does by itself
    assert {terms for _, terms in sums} == {4096}
    assert all("stem" in scopes for scopes, _ in sums)


def test_a_large_window_is_averaged_in_float32() -> None:
    images = jnp.ones((1, 32, 32, 1), jnp.bfloat16)
    pool = partial(linen.avg_pool, window_shape=(32, 32))
    assert jax.jit(wide_sums.widen(pool))(images).item() == 1
    assert jax.jit(pool)(images).item() < 1


def test_short_sums_and_sums_in_float32_are_not_named() -> None:
    sums = list[int]()

    def keep(_scopes: str, terms: int) -> None:
        sums.append(terms)

    for size, dtype in ((256, jnp.bfloat16), (4096, jnp.float32), (2048, jnp.float16)):
        add = wide_sums.widen(lambda x: jax.lax.reduce_sum(x, axes=(0,)), keep)
        assert float(add(jnp.ones(size, dtype))) == size
    assert not sums
