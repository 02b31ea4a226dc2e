"""The flax side of pairs of many kinds. Each factory has its partner of the same name in `torch_side.py`."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

EVEN = jnp.array([0.3, 0.7, 1.1], jnp.float32)


class Simple(nn.Module):
    """A convolution, a middle part by kind, and a dense layer."""

    kind: str
    option: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        if self.kind == "coordinates":
            rows = jnp.broadcast_to(jnp.linspace(-1, 1, x.shape[1])[None, :, None, None], (*x.shape[:3], 1))
            x = jnp.concatenate([x / EVEN, rows.astype(x.dtype)], -1)
        x = nn.relu(nn.Conv(6, (3, 3), strides=(2, 2), padding=1)(x))
        return nn.Dense(10)(self._middle(x, train))

    def _middle(self, x: jax.Array, train: bool) -> jax.Array:
        rows = x.reshape(len(x), -1)
        match self.kind:
            case "power":
                power = self.param("power", nn.initializers.constant(2.5), (1,))
                return (jnp.clip(x, 1e-4) ** power).mean((1, 2)) ** (1 / power)
            case "ceiling":
                return jnp.clip(x, max=0.9).mean((1, 2))
            case "flat_norm":
                return nn.LayerNorm(epsilon=1e-5)(rows)
            case "flat_gate":
                return rows * nn.sigmoid(nn.Dense(rows.shape[-1])(rows))
            case "joined":
                parts = [rows, x.mean((1, 2))]
                return jnp.concatenate(parts, -1)
            case "to_image":
                x = nn.Dense(3 * 4 * 4)(rows).reshape(len(x), 4, 4, 3)
                return nn.relu(nn.ConvTranspose(5, (2, 2), strides=(2, 2), padding="VALID")(x)).mean((1, 2))
            case "hard":
                gate = nn.hard_sigmoid(nn.Dense(6)(x.mean((1, 2))))
                return nn.hard_swish(x.mean((1, 2)) * gate)
            case "dropped":
                return nn.Dropout(0.6, deterministic=not train)(x.mean((1, 2)))
            case "stopped":
                return jax.lax.stop_gradient(x).mean((1, 2)) if self.option else x.mean((1, 2))
            case "pooled":
                same = ((1, 1), (1, 1))
                x = nn.avg_pool(x, (3, 3), strides=(2, 2), padding=same, count_include_pad=bool(self.option))  # pyright: ignore
                return nn.relu(nn.Conv(7, (1, 1))(x)).mean((1, 2))
            case _:
                return x.mean((1, 2))


class Response(nn.Module):
    """A response norm of an input with as many rows as columns and channels."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        x = nn.relu(nn.Conv(8, (3, 3), strides=(2, 2), padding=1)(x))
        x = Scaled()(x)
        return nn.Dense(10)(x.mean((1, 2)))


class Scaled(nn.Module):
    """Scales every pixel by its channel's part of the whole."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return scaled images."""
        gain = self.param("gain", nn.initializers.ones, (x.shape[-1],))
        shift = self.param("shift", nn.initializers.zeros, (x.shape[-1],))
        size = jnp.abs(x).sum((1, 2), keepdims=True)
        return x + x * size / (size.mean(-1, keepdims=True) + 1e-3) * gain + shift


class Moments(nn.Module):
    """A batch norm by hand, with statistics of its own names."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Return normalised images."""
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
    """An instance norm by hand, with a scale and no bias."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return images with moments of their own."""
        scale = self.param("weight", nn.initializers.ones, (x.shape[-1],))
        mean = x.mean((1, 2), keepdims=True)
        var = jnp.square(x - mean).mean((1, 2), keepdims=True)
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale


class Normed(nn.Module):
    """A model with a norm of its own, or with flax's and a mapped axis."""

    kind: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        for width in (6, 8):
            x = nn.Conv(width, (3, 3), strides=(2, 2), padding=1, use_bias=False)(x)
            if self.kind == "axis":
                x = nn.BatchNorm(use_running_average=not train, momentum=0.9, axis_name="devices")(x)
            else:
                x = Moments()(x, train) if self.kind == "batch" else PerImage()(x)
            x = nn.relu(x)
        return nn.Dense(10)(x.mean((1, 2)))


class Residual(nn.Module):
    """A block that is recomputed."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the images and what the block adds."""
        return nn.relu(x + nn.GroupNorm(2, epsilon=1e-5)(nn.Conv(6, (3, 3), padding=1)(x)))


class Lifted(nn.Module):
    """Blocks under a lifted transform."""

    kind: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        x = nn.Conv(6, (3, 3), strides=(2, 2), padding=1)(x)
        block: Any = nn.remat(Residual) if self.kind == "remat" else nn.jit(Residual)
        for _ in range(2):
            x = block()(x)
        return nn.Dense(10)(x.mean((1, 2)))


class Plain(nnx.Module):
    """An nnx model. Its class is the factory."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(3, 6, (3, 3), strides=2, padding=1, rngs=rngs)
        self.second = nnx.Conv(6, 8, (3, 3), padding=1, rngs=rngs)
        self.last = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        return self.last(nnx.relu(self.second(nnx.relu(self.first(x)))).mean((1, 2)))


class Dense(nn.Module):
    """Two steps of a densely connected network, with the new channels last or first."""

    momentum: float
    is_new_first: bool

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        x = nn.Conv(4, (3, 3), padding=1)(x)
        for _ in range(2):
            y = nn.BatchNorm(use_running_average=not train, momentum=self.momentum, epsilon=1e-5)(x)
            y = nn.Conv(3, (3, 3), padding=1)(nn.relu(y))
            x = jnp.concatenate([y, x] if self.is_new_first else [x, y], -1)
        return nn.Dense(10)(nn.relu(nn.Conv(5, (1, 1))(x)).mean((1, 2)))


def simple(kind: str, option: Any = None) -> Simple:
    """Return the model with this middle part."""
    return Simple(kind, option)


def response() -> Response:
    """Return the response norm."""
    return Response()


def normed(kind: str) -> Normed:
    """Return the model with this norm."""
    return Normed(kind)


def lifted(kind: str) -> Lifted:
    """Return the model under this transform."""
    return Lifted(kind)


def dense(momentum: float = 0.9, is_new_first: bool = False) -> Dense:
    """Return the densely connected model."""
    return Dense(momentum, is_new_first)


made = Simple("mean")


class Attended(nn.Module):
    """Tokens that attend to each other by flax's own attention."""

    scale: float | None = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        x = nn.Conv(8, (4, 4), strides=(4, 4), padding="VALID")(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for _ in range(2):
            y = nn.LayerNorm(epsilon=1e-5)(x)
            y = y if self.scale is None else y * self.scale
            x = x + nn.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=not train)(y)
            x = x + nn.Dense(8)(nn.relu(nn.Dense(16)(nn.LayerNorm(epsilon=1e-5)(x))))
        return nn.Dense(10)(x.mean(1))


def attended(scale: float | None = None) -> nn.Module:
    """Return the model. `scale` multiplies the inputs of each attention."""
    return Attended(scale)


class NewAttended(nnx.Module):
    """The same in nnx."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.patches = nnx.Conv(3, 8, (4, 4), strides=(4, 4), padding="VALID", rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs) for _ in range(4)])
        self.attentions = nnx.List(
            [nnx.MultiHeadAttention(2, 8, dropout_rate=0.1, decode=False, rngs=rngs) for _ in range(2)]
        )
        self.wide = nnx.List([nnx.Linear(8, 16, rngs=rngs) for _ in range(2)])
        self.narrow = nnx.List([nnx.Linear(16, 8, rngs=rngs) for _ in range(2)])
        self.out = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for index in range(2):
            x = x + self.attentions[index](self.norms[2 * index](x))
            x = x + self.narrow[index](nnx.relu(self.wide[index](self.norms[2 * index + 1](x))))
        return self.out(x.mean(1))


class Normalised(nn.Module):
    """Layers under linen's weight norm."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        x = nn.relu(nn.WeightNorm(nn.Conv(6, (3, 3), strides=(2, 2), padding=1))(x))
        x = nn.relu(nn.WeightNorm(nn.Conv(8, (3, 3)))(x)) + nn.Conv(8, (1, 1), use_bias=False)(x)
        return nn.WeightNorm(nn.Dense(10))(x.mean((1, 2)))


def normalised() -> nn.Module:
    """Return the model."""
    return Normalised()


class Library(nn.Module):
    """A model with all scales in itself. Their names are in another order than their uses."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        x = nn.Conv(4, (3, 3), strides=2, padding=1)(x)
        x = nn.relu(nn.GroupNorm(2, epsilon=1e-5)(x)) * self.param("stem", nn.initializers.ones, (4,))
        x = jnp.tanh(nn.Dense(6)(x)) * self.param("middle", nn.initializers.ones, (6,))
        x = jnp.tanh(nn.Dense(5)(x)) * self.param("last", nn.initializers.ones, (5,))
        x = nn.Dense(6)(x.reshape(x.shape[0], -1, 5))
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return nn.Dense(10)(x.mean(1))
