"""Batch norm's sums, forward and backward, each two in one reduction where devices exchange them.

To XLA the two are two reductions in one pass over memory, with a last pass each. One reduction for both makes a step of
resnet50 over two H200 1.1 % shorter, and over one 1.1 % longer (docs/speed-log.md, small exchanges between GPUs).
"""

from typing import Any

import jax
import jax.numpy as jnp


def of_squares(x: jax.Array, *, jointly: bool) -> tuple[jax.Array, jax.Array]:
    """Return the sums [C] of x [N, ..., C] and of its squares; `jointly` without a gradient.

    Where devices exchange moments, their gradient is written out (`jaxbackend.exchange.moments`).
    """
    square = jnp.square(x)
    return _summed(x, square) if jointly else (_sum(x), _sum(square))


def affine(x: jax.Array, factor: jax.Array, offset: jax.Array, *, jointly: bool) -> jax.Array:
    """Return x [N, ..., C] times factor [C] plus offset [C], whose gradients are two such sums."""
    return _affine(x, factor, offset) if jointly else x * factor + offset


@jax.custom_vjp
def _affine(x: jax.Array, factor: jax.Array, offset: jax.Array) -> jax.Array:
    return x * factor + offset


def _affine_forward(x: jax.Array, factor: jax.Array, offset: jax.Array) -> tuple[jax.Array, Any]:
    return _affine(x, factor, offset), (x, factor)


def _affine_backward(kept: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, factor = kept
    return gradient * factor, *_summed(gradient * x, gradient)


_affine.defvjp(_affine_forward, _affine_backward)


def _sum(x: jax.Array) -> jax.Array:
    return x.sum(range(x.ndim - 1))


def _summed(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sums of x and y, both [N, ..., C], over all axes but the last, by one reduction."""
    zero = jnp.zeros((), x.dtype)
    return jax.lax.reduce((x, y), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), tuple(range(x.ndim - 1)))
