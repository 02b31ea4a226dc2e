"""Flax models as their users write them, linen and nnx, and factories of them."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from jaxbackend import layers
from jaxbackend.precision import Policy

ModuleDef = Any


class ResNetBlock(nn.Module):
    """A block as in flax's own ImageNet example."""

    filters: int
    conv: ModuleDef
    norm: ModuleDef
    act: Any
    strides: tuple[int, int] = (1, 1)

    @nn.compact
    def __call__(self, x):
        residual = x
        y = self.conv(self.filters, (3, 3), self.strides)(x)
        y = self.norm()(y)
        y = self.act(y)
        y = self.conv(self.filters, (3, 3))(y)
        y = self.norm(scale_init=nn.initializers.zeros_init())(y)
        if residual.shape != y.shape:
            residual = self.conv(self.filters, (1, 1), self.strides, name="conv_proj")(residual)
            residual = self.norm(name="norm_proj")(residual)
        return self.act(residual + y)


class ResNet(nn.Module):
    stage_sizes: Sequence[int]
    num_classes: int
    num_filters: int = 4
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, train: bool = True):
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=self.dtype)
        x = conv(self.num_filters, (7, 7), (2, 2), padding=[(3, 3), (3, 3)], name="conv_init")(x)
        x = norm(name="bn_init")(x)
        x = nn.relu(x)
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for i, block_size in enumerate(self.stage_sizes):
            for j in range(block_size):
                strides = (2, 2) if i > 0 and j == 0 else (1, 1)
                x = ResNetBlock(self.num_filters * 2**i, strides=strides, conv=conv, norm=norm, act=nn.relu)(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_classes, dtype=self.dtype)(x)


def resnet(num_classes=5, dtype=jnp.float32):
    return ResNet(stage_sizes=(1, 1), num_classes=num_classes, dtype=dtype)


class Kinds(nn.Module):
    """Every kind of layer, set up beforehand."""

    dtype: Any = None

    def setup(self):
        self.stem = nn.Conv(8, (3, 3), padding=((1, 1), (1, 1)), dtype=self.dtype)
        self.grouped = nn.Conv(8, (3, 3), strides=2, feature_group_count=2, use_bias=False, dtype=self.dtype)
        self.depthwise = nn.Conv(
            8, (5, 5), padding=((4, 4), (2, 2)), feature_group_count=8, kernel_dilation=(2, 1), dtype=self.dtype
        )
        self.around = nn.Conv(8, (3, 3), padding="CIRCULAR", dtype=self.dtype)
        self.up = nn.ConvTranspose(6, (3, 3), strides=(2, 2), dtype=self.dtype)
        self.up_again = nn.ConvTranspose(
            6, (4, 4), strides=(2, 2), padding=((2, 2), (2, 2)), transpose_kernel=True, use_bias=False, dtype=self.dtype
        )
        self.group_norm = nn.GroupNorm(num_groups=3, dtype=self.dtype)
        self.instance_norm = nn.InstanceNorm(dtype=self.dtype)
        self.hidden = nn.Dense(16, use_bias=False, dtype=self.dtype)
        self.layer_norm = nn.LayerNorm(epsilon=1e-5, dtype=self.dtype)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Dense(5, dtype=self.dtype)

    def __call__(self, x, deterministic):
        x = nn.relu(self.stem(x))
        x = nn.gelu(self.grouped(x), approximate=False)
        x = nn.silu(self.depthwise(x)) + x
        x = self.around(x)
        x = self.group_norm(self.up(x))
        x = nn.gelu(self.up_again(x))
        x = nn.avg_pool(self.instance_norm(x), (2, 2), strides=(2, 2))
        x = x.transpose((0, 3, 1, 2)).reshape((x.shape[0], -1))
        x = self.dropout(self.layer_norm(self.hidden(x)), deterministic=deterministic)
        return self.head(x)


def kinds(dtype=None):
    return Kinds(dtype=dtype)


class NormedFirst(nn.Module):
    """Normalises in float32 before layers that compute in the dtype of the factory."""

    dtype: Any = None

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm(dtype=jnp.float32)(x)
        return nn.Dense(5, dtype=self.dtype)(nn.Conv(4, (3, 3), dtype=self.dtype)(x).mean((1, 2)))


def normed_first(dtype=None):
    return NormedFirst(dtype=dtype)


class Shared(nn.Module):
    """One convolution called twice, an embedding, parameters of the model's own, one of them never used."""

    @nn.compact
    def __call__(self, images):
        conv = nn.Conv(3, (3, 3), name="conv")
        x = nn.tanh(conv(nn.relu(conv(images))))
        tokens = x.reshape((x.shape[0], -1, 3))
        start = self.param("start", nn.initializers.zeros, (1, 1, 3))
        place = self.param("place", nn.initializers.normal(), (1, tokens.shape[1] + 1, 3))
        self.param("spare", nn.initializers.zeros, (4,))
        tokens = jnp.concatenate([jnp.tile(start, (len(tokens), 1, 1)), tokens], axis=1) + place
        table = nn.Embed(2, 3, name="kinds")(jnp.zeros(len(images), jnp.int32))
        return nn.Dense(5, name="head")(tokens[:, 0] + tokens.mean(1) + table)


def shared():
    return Shared()


class BasicBlock(nnx.Module):
    def __init__(self, cin, cout, strides=1, *, dtype, rngs):
        conv = partial(nnx.Conv, kernel_size=(3, 3), padding=((1, 1), (1, 1)), use_bias=False, dtype=dtype, rngs=rngs)
        self.conv1 = conv(cin, cout, strides=strides)
        self.bn1 = nnx.BatchNorm(cout, momentum=0.9, epsilon=1e-3, dtype=dtype, rngs=rngs)
        self.conv2 = conv(cout, cout)
        self.bn2 = nnx.BatchNorm(cout, use_fast_variance=False, dtype=dtype, rngs=rngs)
        if cin != cout:
            self.shortcut = nnx.Conv(cin, cout, (1, 1), strides=strides, dtype=dtype, rngs=rngs)
        else:
            self.shortcut = lambda x: x

    def __call__(self, x):
        y = nnx.relu(self.bn1(self.conv1(x)))
        return nnx.relu(self.shortcut(x) + self.bn2(self.conv2(y)))


class NnxNet(nnx.Module):
    def __init__(self, classes, *, dtype=None, rngs):
        self.layers = nnx.List(
            [
                BasicBlock(3, 6, dtype=dtype, rngs=rngs),
                BasicBlock(6, 8, 2, dtype=dtype, rngs=rngs),
            ]
        )
        self.up = nnx.ConvTranspose(8, 4, (2, 2), strides=(2, 2), padding="VALID", dtype=dtype, rngs=rngs)
        self.norm = nnx.GroupNorm(4, num_groups=2, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.mlp = nnx.Sequential(
            nnx.Linear(4, 8, dtype=dtype, rngs=rngs), nnx.gelu, nnx.LayerNorm(8, dtype=dtype, rngs=rngs)
        )
        self.head = nnx.Linear(8, classes, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        x = nnx.max_pool(self.norm(self.up(x)), (2, 2), strides=(2, 2))
        x = self.dropout(x.mean(axis=(1, 2)))
        return self.head(self.mlp(x))


def nnx_net(rngs: nnx.Rngs, classes=5, dtype=None):
    return NnxNet(classes, dtype=dtype, rngs=rngs)


class Flagged(nnx.Module):
    """Batch norm with its mode at every call, as in code that came from linen."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.8, rngs=rngs)
        self.head = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, x, train: bool):
        x = self.norm(self.conv(x), use_running_average=not train)
        return self.head(nnx.relu(x).mean((1, 2)))


def flagged():
    return Flagged(nnx.Rngs(3))


class LikeOurTwins(nnx.Module):
    """A model of samestep's own layers."""

    def __init__(self, policy):
        self.conv = layers.Conv(3, 6, 3, padding=1, policy=policy)
        self.norm = layers.BatchNorm(6, policy=policy)
        self.pool = layers.MaxPool(2)
        self.up = layers.ConvTranspose(6, 6, 2, stride=2, policy=policy)
        self.scale = layers.LayerScale(6, policy=policy)
        self.head = layers.Dense(6, 5, policy=policy)

    def __call__(self, x):
        x = self.pool(layers.relu(self.norm(self.conv(x))))
        return self.head(self.scale(self.up(x)).mean((1, 2)))


def like_our_twins(dtype, param_dtype):
    return LikeOurTwins(Policy(param_dtype, dtype, None, None))


def wrong_type():
    return jnp.zeros(3)


def returns_class():
    return ResNet


class Anything(nn.Module):
    what: str

    @nn.compact
    def __call__(self, x, train=True):
        conv = nn.Conv(4, (3, 3), dtype=jnp.float32 if self.what == "float32" else None)
        y = nn.Dense(5)(conv(x).mean((1, 2)))
        if self.what == "weight norm":
            return nn.WeightNorm(nn.Dense(5), use_scale=False)(y)
        if self.what == "text":
            return "logits"
        if self.what == "raises":
            raise ValueError("no such thing")
        if self.what == "exits":
            sys.exit(3)
        if self.what == "random":
            return y + jax.random.normal(self.make_rng("noise"), y.shape)
        if self.what == "collection":
            self.variable("memory", "last", lambda: jnp.zeros(3)).value += 1
        return y


def anything(what):
    return Anything(what)


class Noisy(nnx.Module):
    def __init__(self, rngs):
        self.head = nnx.Linear(3, 5, rngs=rngs)
        self.rngs = rngs

    def __call__(self, x):
        return self.head(x.mean((1, 2))) + jax.random.normal(self.rngs.noise(), (len(x), 5))


def noisy(rngs):
    return Noisy(rngs)


class Remembering(nnx.Module):
    """Keeps a mean of its images in a variable that is neither a parameter nor a statistic."""

    def __init__(self, rngs):
        self.head = nnx.Linear(3, 5, rngs=rngs)
        self.seen = nnx.Variable(jnp.zeros(3))

    def __call__(self, x):
        x = x.mean((1, 2))
        self.seen[...] = 0.9 * self.seen[...] + 0.1 * x.mean(0)
        return self.head(x - self.seen[...])


def remembering(rngs):
    return Remembering(rngs)


def not_finite(rngs):
    model = Noisy(rngs)
    model.head.kernel.set_value(model.head.kernel[...] * jnp.nan)
    return model


class Measured(nn.Module):
    """Takes its initial values from its images."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", lambda _: jnp.mean(x, (0, 1, 2)) + 2)
        return nn.Dense(5)((x * scale).mean((1, 2)))


def measured():
    return Measured()


class Plain(nn.Module):
    ranged: bool

    @nn.compact
    def __call__(self, x):
        for features in (8, 16, 16):
            x = nn.relu(nn.Conv(features, (3, 3))(x))
        x = x.mean((1, 2))
        if self.ranged:
            x = x + 0 * jnp.arange(16)
        return nn.Dense(10)(x)


class SqueezeExcite(nn.Module):
    """Written as flax's users write it, with dense layers."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), padding=1)(x))
        squeezed = nn.Dense(8)(nn.relu(nn.Dense(1)(x.mean((1, 2)))))
        x = x * nn.sigmoid(squeezed)[:, None, None]
        return nn.Dense(10)(x.mean((1, 2)))


def plain(ranged=False):
    return Plain(ranged)


def squeezed():
    return SqueezeExcite()


class Prototypes(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Conv(16, (3, 3))(x)).mean((1, 2)) @ nn.Embed(10, 16)(jnp.arange(10)).T


class Misspelt(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(x.mean((1, 22)))


def prototypes():
    return Prototypes()


def misspelt():
    return Misspelt()


def finds_nothing():
    return {}["model"]


class Step(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        x = nn.BatchNorm(use_running_average=False)(nn.Conv(4, (3, 3))(x))
        return x, None


class OnlyImages(nn.Module):
    @nn.compact
    def __call__(self, x):
        return Step()(x)[0]


class Looped(nn.Module):
    kind: str

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3))(x)
        stacked: Any = {"params": 0, "batch_stats": 0}
        if self.kind == "rematerialised":
            x = nn.remat_scan(OnlyImages, lengths=(3, 1), variable_axes=stacked)()(x)
        elif self.kind == "stacked":
            x, _ = nn.scan(Step, variable_axes=stacked, split_rngs={"params": True}, length=3)()(x, None)
        else:
            split: Any = {"params": False}
            x, _ = nn.scan(Step, stacked, variable_broadcast="params", split_rngs=split, length=3)()(x, None)
        return nn.Dense(5)(x.mean((1, 2)))


def looped(kind):
    return Looped(kind)


class Attended(nn.Module):
    kind: str

    @nn.compact
    def __call__(self, x):
        qkv = nn.Dense(96, name="qkv")(x.reshape(x.shape[0], 16, 12)).reshape(x.shape[0], 16, 3, 4, 8)
        q, k, v = jnp.moveaxis(qkv, 2, 0)
        if self.kind == "linen":
            y = nn.dot_product_attention(q, k, v)
        elif self.kind == "jax":
            y = jax.nn.dot_product_attention(q, k, v)
        else:
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(8 if self.kind == "own" else 32)
            y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
        return nn.Dense(5)(nn.Dense(32, name="proj")(y.reshape(x.shape[0], 16, 32)).mean(1))


def attended(kind):
    return Attended(kind)
