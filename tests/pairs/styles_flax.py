"""The flax side of pairs in many styles. Each factory has its partner of the same name in `styles_torch.py`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

Images = jax.Array


class Body(nn.Module):
    """A stem, a middle part, a mean over positions and a dense layer."""

    middle: Callable[[Images], Images]
    classes: int = 10

    @nn.compact
    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        x = nn.relu(nn.Conv(8, (3, 3), (2, 2), padding=1)(x))
        return nn.Dense(self.classes)(self.middle(x).mean((1, 2)))


class Trained(nn.Module):
    """The same, with a middle part that needs to know whether it trains."""

    middle: Callable[[Images, bool], Images]

    @nn.compact
    def __call__(self, x: Images, train: bool = True) -> jax.Array:
        """Return logits."""
        x = nn.relu(nn.Conv(8, (3, 3), (2, 2), padding=1)(x))
        return nn.Dense(10)(self.middle(x, train).mean((1, 2)))


class ListBlock(nnx.Module):
    """Two convolutions and the input."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(8, 8, (3, 3), padding="SAME", rngs=rngs)
        self.second = nnx.Conv(8, 8, (1, 1), rngs=rngs)

    def __call__(self, x: Images) -> Images:
        """Return images."""
        return x + self.second(nnx.gelu(self.first(x), approximate=False))


class Lists(nnx.Module):
    """Residual blocks in a list."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, 8, (3, 3), strides=2, padding=1, rngs=rngs)
        self.blocks = nnx.List([ListBlock(rngs) for _ in range(3)])
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        x = nnx.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, axis=(1, 2)))


lists = Lists


class Named(nn.Module):
    """Layers that `setup` makes."""

    def setup(self) -> None:
        self.conv1, self.conv2 = nn.Conv(6, (5, 5), padding="VALID"), nn.Conv(12, (3, 3), padding="VALID")
        self.fc1, self.fc2 = nn.Dense(20), nn.Dense(10)

    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        x = nn.max_pool(nn.relu(self.conv1(x)), (2, 2), (2, 2))
        x = nn.avg_pool(nn.relu(self.conv2(x)), (2, 2), (2, 2))
        return self.fc2(jnp.tanh(self.fc1(x.reshape(x.shape[0], -1))))


def named() -> nn.Module:
    """Layers that `setup` makes."""
    return Named()


def separable(stride: int = 1, padding: Any = 1) -> nn.Module:
    """A depthwise and a pointwise convolution."""

    def middle(x: Images, train: bool) -> Images:
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5)
        x = nn.Conv(8, (3, 3), stride, padding=padding, feature_group_count=8, use_bias=False)(x)
        x = nn.Conv(16, (1, 1), use_bias=False)(nn.relu6(norm()(x)))
        return nn.relu6(norm()(x))

    return Trained(middle)


def groups(epsilon: float = 1e-5) -> nn.Module:
    """A group norm and SiLU."""
    return Body(lambda x: x + nn.Conv(8, (3, 3))(nn.swish(nn.GroupNorm(num_groups=4, epsilon=epsilon)(x))))


class Autoencoder(nnx.Module):
    """Returns the images again."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.down = nnx.Conv(3, 8, (4, 4), strides=2, padding=1, rngs=rngs)
        self.up = nnx.ConvTranspose(8, 3, (4, 4), strides=2, padding="SAME", rngs=rngs)

    def __call__(self, x: Images) -> Images:
        """Return images."""
        return nnx.sigmoid(self.up(nnx.leaky_relu(self.down(x), 0.2)))


def autoencoder(rngs: nnx.Rngs) -> nnx.Module:
    """A model that reconstructs its input."""
    return Autoencoder(rngs)


class UNet(nn.Module):
    """One skip connection."""

    swapped: bool = False

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return a class for each pixel."""
        skip = nn.relu(nn.Conv(8, (3, 3), name="enc")(x))
        x = nn.relu(nn.Conv(16, (3, 3), name="mid")(nn.max_pool(skip, (2, 2), strides=(2, 2))))
        x = nn.ConvTranspose(8, (2, 2), strides=(2, 2), name="up")(x)
        parts = [x, skip] if self.swapped else [skip, x]
        return nn.Conv(4, (1, 1), name="out")(nn.relu(nn.Conv(8, (3, 3), name="dec")(jnp.concatenate(parts, -1))))


def unet(swapped: bool = False) -> nn.Module:
    """A class for each pixel."""
    return UNet(swapped)


class Mixer(nn.Module):
    """Dense layers over tokens, then over channels."""

    @nn.compact
    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        gelu = partial(nn.gelu, approximate=False)
        x = nn.Conv(12, (4, 4), strides=(4, 4), padding="VALID")(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        y = jnp.swapaxes(nn.LayerNorm(epsilon=1e-5)(x), 1, 2)
        x = x + jnp.swapaxes(nn.Dense(16)(gelu(nn.Dense(20)(y))), 1, 2)
        x = x + nn.Dense(12)(gelu(nn.Dense(24)(nn.LayerNorm(epsilon=1e-5)(x))))
        return nn.Dense(10)(jnp.mean(nn.LayerNorm(epsilon=1e-5)(x), axis=1))


def mixer() -> nn.Module:
    """A small mixer."""
    return Mixer()


class Tokens(nn.Module):
    """Own attention over the positions of an image, with three dense layers."""

    root: bool = True

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        n, h, w, c = x.shape
        rows = x.reshape(n, h * w, c)
        q, k, v = (nn.Dense(c, name=name)(rows).reshape(n, h * w, 2, c // 2) for name in ("query", "key", "value"))
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / (jnp.sqrt(c // 2) if self.root else c // 2)
        mixed = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores, axis=-1), v).reshape(n, h * w, c)
        return (rows + nn.Dense(c, name="out")(mixed)).reshape(x.shape)


def tokens(root: bool = True) -> nn.Module:
    """Attention by hand."""
    return Body(lambda x: Tokens(root)(nn.max_pool(x, (2, 2), (2, 2))))


def squeeze() -> nn.Module:
    """A gate of channels, made by dense layers."""
    return Body(lambda x: x * nn.sigmoid(nn.Dense(8)(nn.relu(nn.Dense(4)(x.mean((1, 2)))))[:, None, None, :]))


class Signals(nn.Module):
    """Convolutions along one axis."""

    @nn.compact
    def __call__(self, x: jax.Array, training: bool = True) -> jax.Array:
        """Return logits."""
        x = nn.Conv(8, (5,), padding=2)(x)
        x = nn.elu(nn.BatchNorm(use_running_average=not training, momentum=0.9)(x))
        x = nn.max_pool(x, (2,), strides=(2,))
        return nn.Dense(10)(nn.elu(nn.Conv(8, (3,), padding="VALID", kernel_dilation=2)(x)).max(1))


def signals() -> nn.Module:
    """A model of signals."""
    return Signals()


class Timed(nn.Module):
    """An image and a time step."""

    @nn.compact
    def __call__(self, image: Images, t: jax.Array) -> Images:
        """Return images."""
        shift = nn.Dense(8)(nn.Embed(10, 8)(t))
        return nn.Conv(3, (3, 3))(nn.silu(nn.Conv(8, (3, 3))(image) + shift[:, None, None]))


def timed() -> nn.Module:
    """A denoiser."""
    return Timed()


class Heads(nn.Module):
    """Two outputs in a dictionary."""

    @nn.compact
    def __call__(self, x: Images) -> dict[str, jax.Array]:
        """Return both."""
        x = nn.relu(nn.Conv(8, (3, 3), strides=2, padding=[(1, 1), (1, 1)])(x)).mean(axis=(-3, -2))
        return {"kind": nn.Dense(10)(x), "size": nn.Dense(2)(x)}


def heads() -> nn.Module:
    """Two tasks."""
    return Heads()


class Again(nn.Module):
    """One convolution that is called three times."""

    times: int = 3

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        conv = nn.Conv(8, (3, 3))
        for _ in range(self.times):
            x = x + jnp.tanh(conv(x))
        return x


def again(times: int = 3) -> nn.Module:
    """Shared weights."""
    return Body(lambda x: Again(times)(x))


def instance() -> nn.Module:
    """An instance norm."""
    part = nn.Sequential(
        [nn.InstanceNorm(epsilon=1e-5), nn.PReLU(negative_slope_init=0.25), nn.Conv(8, (3, 3), use_bias=False)]
    )
    return Body(part)


def curves(slope: float = 0.1) -> nn.Module:
    """Activations of many kinds."""
    kinds = (lambda x: nn.leaky_relu(x, slope), nn.softplus, nn.elu, jax.nn.mish, nn.selu, nn.log_sigmoid)

    def middle(x: Images) -> Images:
        for kind in kinds:
            x = kind(nn.Conv(8, (1, 1))(x))
        return x

    return Body(middle)


def gelu(approximate: bool = False) -> nn.Module:
    """GELU as asked."""
    return Body(lambda x: nn.gelu(nn.Conv(8, (3, 3))(x), approximate=approximate))


def pyramid(rates: Sequence[int] = (1, 2, 3)) -> nn.Module:
    """Dilations."""
    return Body(
        lambda x: nn.relu(jnp.concatenate([nn.Conv(4, (3, 3), kernel_dilation=(rate, rate))(x) for rate in rates], 3))
    )


def shuffle(wrong: bool = False) -> nn.Module:
    """Shuffled channels."""

    def middle(x: Images) -> Images:
        x = nn.relu(nn.Conv(8, (1, 1), feature_group_count=2)(x))
        x = x.reshape(*x.shape[:-1], *((4, 2) if wrong else (2, 4))).swapaxes(-1, -2).reshape(x.shape)
        return nn.Conv(8, (3, 3), feature_group_count=2)(x)

    return Body(middle)


class Enlarge(nn.Module):
    """Twice the size, by interpolation or by moved channels."""

    mode: str

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        n, h, w, c = x.shape
        x = nn.relu(nn.Conv(12 if self.mode in ("pixels", "blocks") else 6, (3, 3))(x))
        if self.mode == "pixels":
            x = x.reshape(n, h, w, c, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(n, 2 * h, 2 * w, c)
        elif self.mode == "blocks":  # as TensorFlow orders them
            x = x.reshape(n, h, w, 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, 2 * h, 2 * w, c)
        elif self.mode == "nearest":
            x = x.repeat(2, axis=1).repeat(2, axis=2)
        else:
            x = jax.image.resize(x, (n, 2 * h, 2 * w, 6), self.mode)
        return nn.Conv(3, (3, 3))(x)


def enlarge(mode: str = "nearest") -> nn.Module:
    """Super-resolution."""
    return Enlarge(mode)


class Equalised(nn.Module):
    """A convolution that scales its weight at its call."""

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        kernel = self.param("kernel", nn.initializers.normal(1.0), (3, 3, x.shape[-1], 8))
        bias = self.param("bias", nn.initializers.zeros, (8,))
        scaled = kernel / jnp.sqrt(9.0 * x.shape[-1])
        return (
            jax.lax.conv_general_dilated(x, scaled, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
        )


def equalised() -> nn.Module:
    """An equalised learning rate."""
    return Body(lambda x: nn.relu(Equalised()(x)))


def norms(momentum: float = 0.9) -> nn.Module:
    """Batch norm before and after."""

    def middle(x: Images, train: bool) -> Images:
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=momentum)(x))
        x = nn.Conv(8, (3, 3), padding="VALID", use_bias=False)(x)
        return nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)

    return Trained(middle)


def stopped(everywhere: bool = False) -> nn.Module:
    """A branch without gradient."""

    def middle(x: Images) -> Images:
        branch = jax.lax.stop_gradient(nn.Conv(8, (3, 3), padding="VALID")(x))
        rest = x[:, 1:-1, 1:-1]
        rest = jax.lax.stop_gradient(rest) if everywhere else rest
        return nn.Conv(8, (1, 1))(nn.relu(branch + rest))

    return Body(middle)


def dropped() -> nn.Module:
    """Dropout of channels, and of features."""

    def middle(x: Images, train: bool) -> Images:
        x = nn.Dropout(0.3, broadcast_dims=(1, 2), deterministic=not train)(x)
        return nn.Dropout(0.1)(nn.relu(nn.Conv(8, (3, 3), padding=0)(x)), deterministic=not train)

    return Trained(middle)


class CheckedBlock(nnx.Module):
    """Two convolutions."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.second = (
            nnx.Conv(8, 8, (3, 3), rngs=rngs),
            nnx.Conv(8, 8, (1, 1), rngs=rngs),
        )

    def __call__(self, x: Images) -> Images:
        """Return images."""
        return self.second(nnx.relu(self.first(x)))


class Checked(nnx.Module):
    """Blocks that are computed again in the backward pass."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, 8, (3, 3), strides=2, padding=1, rngs=rngs)
        self.blocks = nnx.List([CheckedBlock(rngs) for _ in range(2)])
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        x = nnx.relu(self.stem(x))
        for block in self.blocks:
            x = x + nnx.remat(lambda block, x: block(x))(block, x)
        return self.head(x.mean((1, 2)))


def checked(rngs: nnx.Rngs) -> nnx.Module:
    """nnx.remat."""
    return Checked(rngs)


class Encoder(nn.Module):
    """Flax's own attention over patches, with a class token."""

    norm_first: bool = True

    @nn.compact
    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        x = nn.Conv(8, (4, 4), strides=4, padding="VALID")(x).reshape(x.shape[0], 16, 8)
        token = self.param("cls", nn.initializers.normal(0.02), (1, 1, 8))
        x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, 8)), x], 1)
        x = x + self.param("pos_embedding", nn.initializers.normal(0.02), (1, 17, 8))
        for _ in range(2):
            norm1, norm2 = nn.LayerNorm(epsilon=1e-5), nn.LayerNorm(epsilon=1e-5)
            attention = nn.MultiHeadDotProductAttention(num_heads=2)
            wide, narrow = nn.Dense(16), nn.Dense(8)
            if self.norm_first:
                x = x + attention(norm1(x))
                x = x + narrow(nn.gelu(wide(norm2(x)), approximate=False))
            else:
                x = norm1(x + attention(x))
                x = norm2(x + narrow(nn.gelu(wide(x), approximate=False)))
        return nn.Dense(10)(x[:, 0])


def encoder(norm_first: bool = True) -> nn.Module:
    """A vision transformer."""
    return Encoder(norm_first)


class Layered(nn.Module):
    """A residual block with a learned scale."""

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        y = nn.gelu(nn.Dense(32)(nn.LayerNorm()(x)), approximate=False)
        return x + self.param("alpha", nn.initializers.constant(0.3), ()) * nn.Dense(8)(y)


def layered() -> nn.Module:
    """A layer norm of channels in a residual block."""
    return Body(lambda x: Layered()(x))


def pooled(stride: int = 2) -> nn.Module:
    """A pool with padding between convolutions."""
    return Body(lambda x: nn.Conv(8, (3, 3))(nn.avg_pool(x, (3, 3), (stride, stride), [(1, 1), (1, 1)])))  # pyright: ignore


def deep(count: int = 3, active: int = 3) -> nn.Module:
    """Convolutions in a row."""

    def middle(x: Images) -> Images:
        for index in range(count):
            x = nn.Conv(8, (3, 3))(x)
            x = nn.relu(x) if index < active else x
        return x

    return Body(middle)


class Scanned(nn.Module):
    """Convolutions in a row, by a scan over their weights."""

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""

        class Step(nn.Module):
            @nn.compact
            def __call__(self, x: Images, _: None) -> tuple[Images, None]:
                return nn.relu(nn.Conv(8, (3, 3))(x)), None

        return nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()(x, None)[0]


def scanned() -> nn.Module:
    """nn.scan."""
    return Body(lambda x: Scanned()(x))


class Flat(nnx.Module):
    """An image as one row."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.Sequential(
            lambda x: x.reshape(x.shape[0], -1),
            nnx.Linear(768, 32, rngs=rngs),
            nnx.LayerNorm(32, epsilon=1e-5, rngs=rngs),
            nnx.relu,
            nnx.Linear(32, 10, rngs=rngs),
        )

    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        return self.layers(x)


def flat(rngs: nnx.Rngs) -> nnx.Module:
    """A model without convolutions."""
    return Flat(rngs)


def logit() -> nn.Module:
    """One logit."""
    return Body(lambda x: nn.Conv(8, (3, 3), padding="VALID")(x), 1)


class Bilinear(nn.Module):
    """A product of two branches, normalised."""

    @nn.compact
    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        a, b = nn.Conv(4, (3, 3), padding="VALID")(x), nn.Conv(5, (3, 3), padding="VALID")(x)
        product = jnp.einsum("nhwi,nhwj->nij", a, b) / (a.shape[1] * a.shape[2])
        rows = product.reshape(x.shape[0], -1)
        return nn.Dense(10)(rows / jnp.linalg.norm(rows, axis=-1, keepdims=True))


def bilinear() -> nn.Module:
    """Bilinear pooling."""
    return Bilinear()


class Gated(nn.Module):
    """Two convolutions of one kind, a filter and its gate."""

    padding: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return a class for each position."""
        x = nn.Conv(8, (1,))(x)
        gate = nn.sigmoid(nn.Conv(8, (2,), kernel_dilation=2, padding=self.padding)(x))
        return nn.Conv(10, (1,))(x + gate * jnp.tanh(nn.Conv(8, (2,), kernel_dilation=2, padding=self.padding)(x)))


def gated(padding: str = "CAUSAL") -> nn.Module:
    """A gate in signals."""
    return Gated(padding)


def mixing() -> nn.Module:
    """A layer over positions."""

    def middle(x: Images) -> Images:
        rows = x.reshape(x.shape[0], -1, 8)
        return (rows + jnp.swapaxes(nn.Dense(64)(jnp.swapaxes(rows, 1, 2)), 1, 2)).reshape(x.shape)

    return Body(middle)


class Standardised(nn.Module):
    """A convolution with standardised weights and a gain."""

    @nn.compact
    def __call__(self, x: Images) -> Images:
        """Return images."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3, x.shape[-1], 8))
        gain = self.param("gain", nn.initializers.constant(0.9), (8,))
        bias = self.param("bias", nn.initializers.zeros, (8,))
        mean, variance = kernel.mean((0, 1, 2)), kernel.var((0, 1, 2))
        kernel = (kernel - mean) * jax.lax.rsqrt(variance + 1e-6) * gain
        return (
            jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
        )


def standardised() -> nn.Module:
    """Standardised weights."""
    return Body(lambda x: nn.relu(Standardised()(x)))


class PositionAttention(nn.Module):
    """Attention with a bias of queries and values alone, and one of positions, made by layers from a constant."""

    scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return rows."""
        length, width = x.shape[1:]
        q_bias, v_bias = (self.param(name, nn.initializers.zeros, (width,)) for name in ("q_bias", "v_bias"))
        rows = nn.Dense(3 * width, use_bias=False)(x) + jnp.concatenate([q_bias, jnp.zeros(width), v_bias])
        q, k, v = jnp.split(rows, 3, axis=-1)
        table = (np.arange(length, dtype=np.float32) / np.float32(length))[:, None]
        positions = nn.Dense(length, use_bias=False)(nn.relu(nn.Dense(4)(table)))
        scores = jnp.einsum("nqc,nkc->nqk", q, k) * self.scale + positions
        return nn.Dense(width)(jnp.einsum("nqk,nkc->nqc", jax.nn.softmax(scores), v))


class Distilled(nn.Module):
    """Attention over patches with two tokens. In training it returns logits for each."""

    scale: float

    @nn.compact
    def __call__(self, x: Images, train: bool = True) -> jax.Array | tuple[jax.Array, jax.Array]:
        """Return logits."""
        x = nn.Conv(16, (4, 4), (4, 4), padding="VALID")(x).reshape(x.shape[0], -1, 16)
        tokens = [self.param(name, nn.initializers.zeros, (1, 1, 16)) for name in ("token", "teacher")]
        x = jnp.concatenate([*(jnp.tile(token, (x.shape[0], 1, 1)) for token in tokens), x], 1)
        for _ in range(2):
            x = x + PositionAttention(self.scale)(nn.LayerNorm(epsilon=1e-5)(x))
        logits = nn.Dense(10)(x[:, 0]), nn.Dense(10)(x[:, 1])
        return logits if train else (logits[0] + logits[1]) / 2


def distilled(scale: float = 0.25) -> nn.Module:
    """Two tokens."""
    return Distilled(scale)


class Active(nn.Conv):
    """A convolution and its activation."""

    @nn.compact
    def __call__(self, inputs: Images) -> Images:  # pyright: ignore
        """Return images."""
        return nn.leaky_relu(super().__call__(inputs), 0.1)


class NewActive(nnx.Conv):
    """A convolution and its activation."""

    def __call__(self, inputs: Images) -> Images:  # pyright: ignore
        """Return images."""
        return nnx.leaky_relu(super().__call__(inputs), 0.1)


class Derived(nnx.Module):
    """Layers of classes that derive from nnx's."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, 8, (3, 3), strides=2, padding=1, rngs=rngs)
        self.first, self.second = (
            NewActive(8, 8, (3, 3), rngs=rngs),
            nnx.Conv(8, 8, (3, 3), padding="VALID", rngs=rngs),
        )
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x: Images) -> jax.Array:
        """Return logits."""
        return self.head(self.second(self.first(nnx.relu(self.stem(x)))).mean((1, 2)))


def derived() -> nn.Module:
    """Classes that derive from linen's."""
    return Body(lambda x: nn.Conv(8, (3, 3), padding="VALID")(Active(8, (3, 3))(x)))


def newly_derived(rngs: nnx.Rngs) -> nnx.Module:
    """Classes that derive from nnx's."""
    return Derived(rngs)


def padded() -> nn.Module:
    """Padding as little as the image's size needs."""
    return Body(lambda x: nn.relu(nn.Conv(8, (3, 3), 2, padding="SAME")(x)))
