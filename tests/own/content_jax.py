"""Flax models with contents of many kinds. `content_torch.py` has the same models in PyTorch."""

import jax.numpy as jnp
from flax import linen as nn


class Flagged(nn.Module):
    is_train: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(8, (3, 3), padding=1, dtype=jnp.float32)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not self.is_train, momentum=0.9)(x))
        return nn.Dense(4)(x.mean((1, 2)))


def flagged():
    return Flagged()


class Inferring(nn.Module):
    rate: float = 0.3

    @nn.compact
    def __call__(self, x, inference=False):
        x = nn.relu(nn.Conv(32, (3, 3), padding=1)(x))
        x = nn.Dropout(self.rate, deterministic=inference)(x)
        return nn.Dense(4)(x.mean((1, 2)))


def dropping(rate=0.3):
    return Inferring(rate)


class Scaled(nn.Module):
    factor: float = 0.5

    @nn.compact
    def __call__(self, x):
        x = (x - 0.25) / self.factor
        kernel = jnp.array([1.0, 2.0, 1.0]) / 4
        return nn.Dense(4)((nn.relu(nn.Conv(8, (3, 3), padding=1)(x)) * kernel.sum()).mean((1, 2)))


def scaled(factor=0.5):
    return Scaled(factor)


class Collected(nn.Module):
    @nn.compact
    def __call__(self, x):
        table = self.variable("constants", "table", lambda: jnp.arange(8.0) / 8)
        self.sow("metrics", "mean", x.mean())
        x = nn.relu(nn.Conv(8, (3, 3), padding=1)(x) + table.value)
        return nn.Dense(4)(x.mean((1, 2)))


def collected():
    return Collected()


class Attention(nn.Module):
    heads: int = 2

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(8, (2, 2), strides=2)(x)
        n, h, w, c = x.shape
        x = x.reshape(n, h * w, c)
        q, k, v = (nn.Dense(c, name=name)(x).reshape(n, h * w, self.heads, -1) for name in "qkv")
        weights = nn.softmax(jnp.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5)
        x = x + nn.Dense(c, name="out")(jnp.einsum("bhij,bjhd->bihd", weights, v).reshape(n, h * w, c))
        return nn.Dense(4, name="head")(x.mean(1))


def attention(heads=2):
    return Attention(heads)


class Tied(nn.Module):
    frozen: bool = True

    @nn.compact
    def __call__(self, x):
        conv = nn.Conv(3, (3, 3), padding=1)
        x = nn.relu(conv(nn.relu(conv(x))))
        y = nn.Dense(8, name="frozen_dense")(x.mean((1, 2)))
        return nn.Dense(4)(nn.relu(y))


def tied():
    return Tied()
