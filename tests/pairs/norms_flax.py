"""Norms of one's own, on flax's side."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class Moments(nn.Module):
    """A batch norm with variables and statistics of its own names."""

    rate: float = 0.1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Return the normalised images."""
        size = x.shape[-1]
        gain = self.param("gain", nn.initializers.ones, (size,))
        shift = self.param("shift", nn.initializers.zeros, (size,))
        mean = self.variable("batch_stats", "moving_mean", jnp.zeros, (size,))
        var = self.variable("batch_stats", "moving_variance", jnp.ones, (size,))
        centre, spread = mean.value, var.value
        if train:
            centre = x.mean((0, 1, 2))
            spread = ((x - centre) ** 2).mean((0, 1, 2))
            if not self.is_initializing():
                mean.value = 0.9 * mean.value + 0.1 * centre
                var.value = 0.9 * var.value + 0.1 * spread
        return (x - centre) / jnp.sqrt(spread + 1e-5) * gain + shift


class PerImage(nn.Module):
    """An instance norm by hand."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return images with moments of their own."""
        scale = self.param("weight", nn.initializers.ones, (x.shape[-1],))
        mean = x.mean((1, 2), keepdims=True)
        var = jnp.square(x - mean).mean((1, 2), keepdims=True)
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale


class Net(nn.Module):
    """A model with either norm."""

    kind: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> Any:
        """Return logits."""
        for width in (6, 8):
            x = nn.Conv(width, (3, 3), strides=2, padding=1)(x)
            x = nn.relu(Moments()(x, train) if self.kind == "batch" else PerImage()(x))
        return nn.Dense(10)(x.mean((1, 2)))


def batch() -> Net:
    """Return the model with batch norm."""
    return Net("batch")


def instance() -> Net:
    """Return the model with instance norm."""
    return Net("instance")
