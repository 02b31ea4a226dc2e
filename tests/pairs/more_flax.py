"""The flax side of more pairs. Each factory has its partner of the same name in `more_torch.py`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from tests.pairs.styles_flax import Body, Trained

Images = jax.Array


class TwiceTied(nn.Module):
    """Two places for convolutions, with one convolution at both if asked."""

    tied: bool

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        first = nn.Conv(8, (3, 3))
        second = first if self.tied else nn.Conv(8, (3, 3))
        return second(nn.relu(first(x)))


def twice_tied(tied: bool = True) -> nn.Module:
    """One convolution at two places."""
    return Body(lambda x: TwiceTied(tied)(x))


class Words(nn.Module):
    """Scores of the next word, by the embedding's own weights if asked."""

    tied: bool

    def setup(self) -> None:
        self.embed, self.hidden = nn.Embed(10, 8), nn.Dense(8)
        self.decoder = self.embed.attend if self.tied else nn.Dense(10, use_bias=False)

    def __call__(self, words: jax.Array, x: jax.Array) -> jax.Array:
        """Return scores."""
        return self.decoder(jnp.tanh(self.hidden(self.embed(words) + x)))


def words(tied: bool = True) -> nn.Module:
    """An embedding that also decodes."""
    return Words(tied)


class RootNorm(nn.Module):
    """RMSNorm, computed in float32 if asked."""

    single: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return normalised rows."""
        y = x.astype(jnp.float32) if self.single else x
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
        return y.astype(x.dtype) * self.param("weight", nn.initializers.ones, (x.shape[-1],))


class Rows(nn.Module):
    """Patches as rows, a part, a mean over rows and a dense layer."""

    part: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        x = nn.Conv(8, (4, 4), (4, 4), padding="VALID")(x)
        return nn.Dense(10)(self.part(x.reshape(x.shape[0], -1, 8)).mean(1))


def root_norm(single: bool = False) -> nn.Module:
    """RMSNorm."""
    return Rows(lambda x: nn.gelu(nn.Dense(8)(RootNorm(single)(x)), approximate=False))


def flax_norm() -> nn.Module:
    """Flax's own RMSNorm."""
    return Rows(lambda x: nn.gelu(nn.Dense(8)(nn.RMSNorm()(x)), approximate=False))


class Orders(nn.Module):
    """Free parameters of one shape, in the order of their use."""

    names: tuple[str, ...] = ("scale", "pos", "gamma1", "gamma2")

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return rows."""
        scale, pos, first, second = self.names
        normal = nn.initializers.normal(0.1)
        x = x * self.param(scale, normal, (1, 16, 8)) + self.param(pos, normal, (1, 16, 8))
        x = x + self.param(first, normal, (8,)) * nn.Dense(8)(x)
        return x + self.param(second, normal, (8,)) * nn.Dense(8)(x)


def orders(renamed: bool = False) -> nn.Module:
    """Parameters in another order."""
    return Rows(lambda x: (Orders(("a", "b", "ls2", "ls1")) if renamed else Orders())(x))


class Tokens(nn.Module):
    """Two tokens of one shape."""

    names: tuple[str, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return rows."""
        tokens = {name: self.param(name, nn.initializers.normal(1.0), (1, 1, 8)) for name in sorted(self.names)}
        cls, register = (jnp.broadcast_to(tokens[name], (x.shape[0], 1, 8)) for name in self.names)
        return jnp.cumsum(jnp.concatenate([cls, x, register], 1), 1)


def joined_tokens(renamed: bool = False) -> nn.Module:
    """Tokens in another order."""
    return Rows(lambda x: Tokens(("token_b", "token_a") if renamed else ("cls", "register"))(x))


class Film(nn.Module):
    """A condition scales and shifts normalised images."""

    one: float

    @nn.compact
    def __call__(self, image: Images, c: jax.Array) -> Images:
        """Return images."""
        x = nn.GroupNorm(2, epsilon=1e-5, use_bias=False, use_scale=False)(nn.Conv(8, (3, 3))(image))
        scale, shift = jnp.split(nn.Dense(16)(c)[:, None, None, :], 2, axis=-1)
        return nn.Conv(3, (3, 3))(nn.silu(x * (self.one + scale) + shift))


def film(one: float = 1.0) -> nn.Module:
    """FiLM."""
    return Film(one)


class Fourier(nnx.Module):
    """Sines and cosines of coordinates."""

    def __init__(self, turned: bool, rngs: nnx.Rngs) -> None:
        self.turned = turned
        self.wide, self.narrow = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, coords: jax.Array) -> jax.Array:
        """Return colours."""
        angles = 2 * jnp.pi * coords @ (jnp.arange(8, dtype=coords.dtype).reshape(2, 4) / 8)
        parts = [jnp.sin(angles), jnp.cos(angles)]
        return self.narrow(nnx.relu(self.wide(jnp.concatenate(parts[::-1] if self.turned else parts, -1))))


def fourier(rngs: nnx.Rngs, turned: bool = False) -> nnx.Module:
    """Fourier features."""
    return Fourier(turned, rngs)


class Volume(nn.Module):
    """A reconstruction of volumes."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return volumes."""
        x = nn.InstanceNorm(epsilon=1e-5)(nn.Conv(4, (3, 3, 3), strides=2, padding=1)(x))
        return nn.ConvTranspose(1, (2, 2, 2), strides=(2, 2, 2), padding="VALID")(nn.leaky_relu(x))


def volume() -> nn.Module:
    """A reconstruction of volumes."""
    return Volume()


def transposed(flipped: bool = False, padding: Any = ((1, 2), (1, 2))) -> nn.Module:
    """A transposed convolution with equal widths."""
    return Body(
        lambda x: nn.relu(nn.ConvTranspose(8, (3, 3), strides=(2, 2), padding=padding, transpose_kernel=flipped)(x))
    )


class Inverted(nn.Module):
    """An inverted residual block with a gate."""

    gate: Callable[[Images], Images]
    biased: bool
    train: bool

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""

        def norm(x: Images) -> Images:
            return nn.BatchNorm(use_running_average=not self.train, momentum=0.99, epsilon=1e-3)(x)

        y = nn.hard_swish(norm(nn.Conv(24, (1, 1), use_bias=False)(x)))
        y = nn.hard_swish(norm(nn.Conv(24, (5, 5), feature_group_count=24, use_bias=False)(y)))
        share = nn.relu(nn.Dense(6, use_bias=self.biased)(y.mean((1, 2), keepdims=True)))
        return x + norm(nn.Conv(8, (1, 1), use_bias=False)(y * self.gate(nn.Dense(24)(share))))


def inverted(gate: str = "hard_sigmoid", biased: bool = True) -> nn.Module:
    """MobileNetV3's block."""
    return Trained(lambda x, train: Inverted(getattr(nn, gate), biased, train)(x))


class Same(nn.Module):
    """A convolution of an even length that keeps the length."""

    approximate: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        x = nn.gelu(nn.Conv(8, (4,), padding="SAME")(x), approximate=self.approximate)
        return nn.Dense(10)(nn.relu(nn.Conv(8, (3,), 2, padding=1, feature_group_count=4)(x)).mean(1))


def same(approximate: bool = True) -> nn.Module:
    """A convolution of an even length that keeps the length."""
    return Same(approximate)


def circular(padding: str = "CIRCULAR") -> nn.Module:
    """Edges from the other side."""
    return Body(lambda x: nn.relu(nn.Conv(8, (3, 3), padding=padding)(x)))


def reflected(mode: str = "reflect") -> nn.Module:
    """Mirrored edges."""
    return Body(
        lambda x: nn.relu(
            nn.Conv(8, (3, 3), padding="VALID")(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=mode))  # pyright: ignore
        )
    )


class GatedMLP(nn.Module):
    """SwiGLU from one dense layer."""

    turned: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return rows."""
        gate, value = jnp.split(nn.Dense(32, use_bias=False)(RootNorm()(x)), 2, -1)
        gate, value = (value, gate) if self.turned else (gate, value)
        return x + nn.Dense(8)(nn.silu(gate) * value)


def gated_mlp(turned: bool = False) -> nn.Module:
    """A gated MLP."""
    return Rows(lambda x: GatedMLP(turned)(x))


class SpatialGate(nnx.Module):
    """Half of the features are mixed over rows, and gate the other half."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.patch = nnx.Conv(3, 8, (4, 4), strides=(4, 4), padding="VALID", rngs=rngs)
        self.wide, self.narrow, self.head = (
            nnx.Linear(8, 12, rngs=rngs),
            nnx.Linear(6, 8, rngs=rngs),
            nnx.Linear(8, 10, rngs=rngs),
        )
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs)
        self.mix = nnx.Linear(16, 16, rngs=rngs)

    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        x = self.patch(x).reshape(x.shape[0], -1, 8)
        u, v = jnp.split(nnx.gelu(self.wide(x), approximate=False), 2, axis=-1)
        v = self.mix(self.norm(v).swapaxes(1, 2)).swapaxes(1, 2)
        return self.head((x + self.narrow(u * v)).mean(1))


def spatial_gate(rngs: nnx.Rngs) -> nnx.Module:
    """gMLP."""
    return SpatialGate(rngs)


class OwnGroups(nn.Module):
    """A group norm by hand."""

    ddof: int

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        y = x.reshape(*x.shape[:-1], 2, 4)
        mean, variance = y.mean((1, 2, 4), keepdims=True), y.var((1, 2, 4), keepdims=True, ddof=self.ddof)
        y = ((y - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape)
        return y * self.param("scale", nn.initializers.ones, (8,)) + self.param("bias", nn.initializers.zeros, (8,))


def grouped(ddof: int = 0) -> nn.Module:
    """A group norm by hand."""
    return Body(lambda x: nn.Conv(8, (3, 3))(nn.relu(OwnGroups(ddof)(x))))


class Standardised(nn.Conv):
    """A convolution with standardised weights."""

    def param(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return a parameter, the kernel standardised."""
        value = super().param(name, *arguments, **options)
        if name != "kernel":
            return value
        mean, variance = value.mean((0, 1, 2)), value.var((0, 1, 2))
        return (value - mean) / jnp.sqrt(variance + 1e-6)


def standard_weights() -> nn.Module:
    """Weight standardisation."""
    return Body(lambda x: nn.relu(Standardised(8, (3, 3))(x)))


class Window(nn.Module):
    """Attention over a window with a table of relative positions."""

    turned: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return rows."""
        n, length, width = x.shape
        qkv = nn.Dense(3 * width)(x).reshape(n, length, 3, 2, width // 2).transpose(2, 0, 3, 1, 4)
        places = np.stack(np.meshgrid(np.arange(4), np.arange(4), indexing="ij")).reshape(2, -1)
        apart = places[:, :, None] - places[:, None, :] + 3
        index = apart[0] * 7 + apart[1]
        table = self.param("relative_position_bias", nn.initializers.normal(0.1), (49, 2))
        bias = table[index.T if self.turned else index].transpose(2, 0, 1)
        scores = jnp.einsum("nhqc,nhkc->nhqk", qkv[0] * (width // 2) ** -0.5, qkv[1]) + bias
        y = jnp.einsum("nhqk,nhkc->nqhc", nn.softmax(scores), qkv[2]).reshape(n, length, width)
        return x + nn.Dense(width)(y)


def window(turned: bool = False) -> nn.Module:
    """Swin's attention."""
    return Rows(lambda x: Window(turned)(x))


class Rotary(nn.Module):
    """Attention with rotated queries and keys."""

    interleaved: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return rows."""
        n, length, width = x.shape
        q, k, v = (
            nn.Dense(8, use_bias=False, name=f"{name}_proj")(x).reshape(n, length, 2, 4).transpose(0, 2, 1, 3)
            for name in "qkv"
        )
        angles = jnp.outer(jnp.arange(length, dtype=x.dtype), jnp.asarray([1.0, 0.25], x.dtype))

        def turn(x: jax.Array) -> jax.Array:
            if self.interleaved:
                a, b = x[..., ::2], x[..., 1::2]
                pair = a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)
                return jnp.stack(pair, -1).reshape(x.shape)
            a, b = jnp.split(x, 2, -1)
            pair = a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)
            return jnp.concatenate(pair, -1)

        scores = turn(q) @ turn(k).swapaxes(-1, -2) / 2
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        y = (nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(n, length, width)
        return x + nn.Dense(8, use_bias=False, name="o_proj")(y)


def rotary(interleaved: bool = False) -> nn.Module:
    """Rotary positions."""
    return Rows(lambda x: Rotary(interleaved)(x))


def depth(rate: float = 0.2) -> nn.Module:
    """Stochastic depth."""

    def middle(x: Images, train: bool) -> Images:
        return x + nn.Dropout(rate, broadcast_dims=(1, 2, 3), deterministic=not train)(nn.relu(nn.Conv(8, (3, 3))(x)))

    return Trained(middle)


class Centred(nn.Module):
    """Subtracts a moving mean of the features."""

    momentum: float

    @nn.compact
    def __call__(self, x: Images, train: bool = True) -> jax.Array:
        """Return logits."""
        x = nn.relu(nn.Conv(8, (3, 3), 2, padding=1)(x)).mean((1, 2))
        center = self.variable("batch_stats", "center", jnp.zeros, (1, 8))
        result = nn.Dense(10)(x - center.value)
        if train and not self.is_initializing():
            mean = jax.lax.stop_gradient(x.mean(0, keepdims=True))
            center.value = self.momentum * center.value + (1 - self.momentum) * mean
        return result


def centred(momentum: float = 0.9) -> nn.Module:
    """A buffer that follows the features."""
    return Centred(momentum)


class Segmented(nn.Module):
    """Lateral 1x1 convolutions and a sum from coarse to fine."""

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return a class for each pixel."""
        c1 = nn.relu(nn.Conv(8, (3, 3), 2, padding=1)(x))
        c2 = nn.relu(nn.Conv(12, (3, 3), 2, padding=1)(c1))
        fine, coarse = nn.Conv(6, (1, 1))(c1), nn.Conv(6, (1, 1))(c2)
        y = nn.Conv(4, (3, 3))(fine + jax.image.resize(coarse, fine.shape, "bilinear"))
        n, h, w, c = y.shape
        return jax.image.resize(y, (n, 2 * h, 2 * w, c), "nearest")


def segmented() -> nn.Module:
    """Segmentation."""
    return Segmented()


class Keypoints(nn.Module):
    """The expected place of each heat map."""

    turned: bool

    @nn.compact
    def __call__(self, x: Images) -> jax.Array:
        """Return x and y of each point."""
        heat = nn.Conv(5, (1, 1))(nn.relu(nn.Conv(8, (3, 3), 2, padding=1)(x)))
        n, h, w, points = heat.shape
        share = nn.softmax(heat.reshape(n, h * w, points), axis=1).reshape(heat.shape)
        xs, ys = (jnp.linspace(0, 1, size, dtype=x.dtype) for size in (w, h))
        places = [jnp.einsum("nhwp,w->np", share, xs), jnp.einsum("nhwp,h->np", share, ys)]
        return jnp.stack(places[::-1] if self.turned else places, -1)


def keypoints(turned: bool = False) -> nn.Module:
    """Key points by a soft argmax."""
    return Keypoints(turned)


class SpaceToDepth(nn.Module):
    """Moves blocks into channels."""

    blocks_first: bool

    @nn.compact
    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        n, h, w, c = x.shape
        order = (0, 1, 3, 2, 4, 5) if self.blocks_first else (0, 1, 3, 5, 2, 4)
        x = x.reshape(n, h // 4, 4, w // 4, 4, c).transpose(order).reshape(n, h // 4, w // 4, 16 * c)
        x = nn.Conv(8, (3, 3))(x)
        slope = self.param("slope", nn.initializers.constant(0.25), (8,))
        return nn.Dense(10)(jnp.where(x >= 0, x, slope * x).max((1, 2)))


def space_to_depth(blocks_first: bool = False) -> nn.Module:
    """Moves blocks into channels."""
    return SpaceToDepth(blocks_first)


class Encoder(nn.Module):
    """Features of an image."""

    @nn.compact
    def __call__(self, x: Images) -> jax.Array:
        """Return features."""
        return (nn.softplus(2 * nn.Conv(8, (3, 3), 2, padding=1)(x)) / 2).mean((1, 2))


class Siamese(nn.Module):
    """One encoder for two images, or two if asked."""

    tied: bool

    @nn.compact
    def __call__(self, a: Images, b: Images) -> jax.Array:
        """Return logits."""
        encoder = Encoder()
        other = encoder if self.tied else Encoder()
        return nn.Dense(10)(jnp.abs(encoder(a) - other(b)))


def siamese(tied: bool = True) -> nn.Module:
    """Two images."""
    return Siamese(tied)


class Experts(nn.Module):
    """A weighted sum of experts."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return rows."""
        shares = nn.softmax(nn.Dense(3, name="router")(x))
        results = [nn.Dense(8)(nn.gelu(nn.Dense(16)(x), approximate=False)) for _ in range(3)]
        return sum(shares[..., index, None] * result for index, result in enumerate(results))  # pyright: ignore


def experts() -> nn.Module:
    """A mixture of experts."""
    return Rows(lambda x: Experts()(x))


class NonLocal(nn.Module):
    """A non-local block by its paper's names."""

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        n, h, w, c = x.shape
        theta, phi, g = (
            nn.Conv(c // 2, (1, 1), name=name)(x).reshape(n, h * w, c // 2) for name in ("theta", "phi", "g")
        )
        share = nn.softmax(jnp.einsum("nic,njc->nij", theta, phi) / jnp.sqrt(c // 2))
        return x + nn.Conv(c, (1, 1), name="W")((share @ g).reshape(n, h, w, c // 2))


def non_local() -> nn.Module:
    """A non-local block."""
    return Body(lambda x: NonLocal()(nn.max_pool(x, (3, 3), (2, 2), ((0, 1), (0, 1)))))  # pyright: ignore
