"""Ports of torchvision's and timm's models, written as people write them, and one of a published package.

Each can have one mistake by name.

The torch side is `published_torch.py`.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

BatchNorm = partial(nn.BatchNorm, momentum=0.9, epsilon=1e-5)


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions, or of two if it is `basic`."""

    width: int
    stride: int
    basic: bool
    norm: Any
    early_stride: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the block's images."""
        residual, strides = x, (self.stride, self.stride)
        if self.basic:
            outputs = self.width
            x = nn.relu(self.norm()(nn.Conv(self.width, (3, 3), strides, padding=1, use_bias=False)(x)))
            x = self.norm()(nn.Conv(self.width, (3, 3), padding=1, use_bias=False)(x))
        else:
            outputs = 4 * self.width
            first, second = (strides, (1, 1)) if self.early_stride else ((1, 1), strides)
            x = nn.relu(self.norm()(nn.Conv(self.width, (1, 1), first, use_bias=False)(x)))
            x = nn.relu(self.norm()(nn.Conv(self.width, (3, 3), second, padding=1, use_bias=False)(x)))
            x = self.norm()(nn.Conv(outputs, (1, 1), use_bias=False)(x))
        if residual.shape != x.shape:
            residual = self.norm()(nn.Conv(outputs, (1, 1), strides, use_bias=False)(residual))
        return nn.relu(x + residual)


class ResNet(nn.Module):
    """torchvision's resnet18 and resnet50."""

    depths: Sequence[int]
    basic: bool
    classes: int = 10
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        norm = partial(BatchNorm, use_running_average=not train)
        x = nn.Conv(64, (7, 7), (2, 2), padding=3, use_bias=False)(x)
        x = nn.relu(norm()(x))
        pad: Any = "SAME" if self.mistake == "pool" else ((1, 1), (1, 1))
        x = nn.max_pool(x, (3, 3), (2, 2), padding=pad)
        for stage, depth in enumerate(self.depths):
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                x = Bottleneck(64 * 2**stage, stride, self.basic, norm, self.mistake == "stride")(x)
        return nn.Dense(self.classes)(x.mean((1, 2)))


def resnet18(mistake: str = "") -> nn.Module:
    """Return torchvision's resnet18. Mistake `pool` pads the pool as TensorFlow does."""
    return ResNet((2, 2, 2, 2), True, mistake=mistake)


def resnet50(mistake: str = "") -> nn.Module:
    """Return torchvision's resnet50. Mistake `stride` strides in the first convolution of a block."""
    return ResNet((3, 4, 6, 3), False, mistake=mistake)


class VGG(nn.Module):
    """torchvision's vgg11_bn with a narrow head."""

    classes: int = 10
    width: int = 64
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        for item in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
            if isinstance(item, str):
                x = nn.max_pool(x, (2, 2), strides=(2, 2))
                continue
            x = nn.Conv(item, (3, 3), padding="SAME")(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.1 if self.mistake else 0.9)(x)
            x = nn.relu(x)
        x = x.reshape((x.shape[0], -1))
        for _ in range(2):
            x = nn.relu(nn.Dense(self.width)(x))
            x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(self.classes)(x)


def vgg(mistake: str = "") -> nn.Module:
    """Return torchvision's vgg11_bn with a narrow head. Mistake `momentum` copies torch's number."""
    return VGG(mistake=mistake)


class DenseNet(nn.Module):
    """torchvision's densenet121."""

    classes: int = 10
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        norm = partial(BatchNorm, use_running_average=not train)
        conv = partial(nn.Conv, use_bias=False)
        x = nn.relu(norm(name="norm0")(conv(64, (7, 7), strides=(2, 2), padding=3, name="conv0")(x)))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))  # pyright: ignore
        for block, depth in enumerate((6, 12, 24, 16)):
            for _ in range(depth):
                new = conv(128, (1, 1))(nn.relu(norm()(x)))
                new = conv(32, (3, 3), padding=[(1, 1), (1, 1)])(nn.relu(norm()(new)))
                parts = [new, x] if self.mistake == "order" else [x, new]
                x = jnp.concatenate(parts, axis=-1)
            if block < 3:
                x = conv(x.shape[-1] // 2, (1, 1))(nn.relu(norm()(x)))
                x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(norm(name="norm5")(x))
        return nn.Dense(self.classes, name="classifier")(jnp.mean(x, axis=(1, 2)))


def densenet121(mistake: str = "") -> nn.Module:
    """Return torchvision's densenet121. Mistake `order` puts new channels first."""
    return DenseNet(mistake=mistake)


class MobileNetV2(nn.Module):
    """torchvision's mobilenet_v2."""

    classes: int = 10
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        cap = nn.relu if self.mistake == "relu" else nn.relu6

        def unit(x: jax.Array, width: int, size: int = 1, stride: int = 1, groups: int = 1) -> jax.Array:
            pad = size // 2
            x = nn.Conv(
                width, (size, size), (stride, stride), [(pad, pad)] * 2, feature_group_count=groups, use_bias=False
            )(x)
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)

        x = cap(unit(x, 32, 3, 2))
        settings = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2)]
        for expand, width, depth, first in [*settings, (6, 320, 1, 1)]:
            for index in range(depth):
                stride, residual = first if index == 0 else 1, x
                hidden = x.shape[-1] * expand
                if expand != 1:
                    x = cap(unit(x, hidden))
                x = cap(unit(x, hidden, 3, stride, hidden))
                x = unit(x, width)
                if residual.shape == x.shape:
                    x = x + residual
        x = cap(unit(x, 1280)).mean((1, 2))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(self.classes)(x)


def mobilenet_v2(mistake: str = "") -> nn.Module:
    """Return torchvision's mobilenet_v2. Mistake `relu` has no ceiling."""
    return MobileNetV2(mistake=mistake)


def make_divisible(value: float, divisor: int = 8) -> int:
    """Return the nearest multiple of the divisor that is at least nine tenths of the value."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


class SqueezeExcite(nn.Module):
    """Gates channels by their means."""

    width: int
    act: Callable[[jax.Array], jax.Array]
    gate: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return gated images."""
        y = jnp.mean(x, axis=(1, 2), keepdims=True)
        y = self.act(nn.Conv(self.width, (1, 1))(y))
        return x * self.gate(nn.Conv(x.shape[-1], (1, 1))(y))


class MobileNetV3(nn.Module):
    """torchvision's mobilenet_v3_small."""

    classes: int = 10
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        gate = nn.sigmoid if self.mistake == "gate" else nn.hard_sigmoid

        def unit(x: jax.Array, width: int, size: int = 1, stride: int = 1, groups: int = 1) -> jax.Array:
            x = nn.Conv(
                width, (size, size), stride, padding=size // 2, feature_group_count=groups, use_bias=False
            )(x)  # fmt: skip
            return nn.BatchNorm(not train, momentum=0.99, epsilon=0.001)(x)

        x = nn.hard_swish(unit(x, 16, 3, 2))
        for size, hidden, width, squeezed, hard, stride in (
            (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
            (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
            (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2),
            (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
        ):  # fmt: skip
            act, residual = nn.hard_swish if hard else nn.relu, x
            if hidden != x.shape[-1]:
                x = act(unit(x, hidden))
            x = act(unit(x, hidden, size, stride, hidden))
            if squeezed:
                x = SqueezeExcite(make_divisible(hidden // 4), nn.relu, gate)(x)
            x = unit(x, width)
            if stride == 1 and residual.shape[-1] == width:
                x = x + residual
        x = nn.hard_swish(unit(x, 576)).mean(axis=(1, 2))
        x = nn.hard_swish(nn.Dense(1024)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(self.classes)(x)


def mobilenet_v3(mistake: str = "") -> nn.Module:
    """Return torchvision's mobilenet_v3_small. Mistake `gate` has a plain sigmoid."""
    return MobileNetV3(mistake=mistake)


class StochasticDepth(nn.Module):
    """Leaves out whole images of a branch in training."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Return the branch, or zeros for some images."""
        if not train or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        mask = jax.random.bernoulli(self.make_rng("dropout"), keep, (x.shape[0],) + (1,) * (x.ndim - 1))
        return x / keep * mask


class EfficientNet(nn.Module):
    """torchvision's efficientnet_b0."""

    classes: int = 10
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5)

        def conv(width: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
            return nn.Conv(
                width, (size, size), strides=stride, padding=size // 2, feature_group_count=groups, use_bias=False
            )

        x = nn.silu(norm()(conv(32, 3, 2)(x)))
        settings = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3)]
        number = 0
        for expand, size, first, width, depth in [*settings, (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]:
            for index in range(depth):
                stride, inputs, residual = (first if index == 0 else 1), x.shape[-1], x
                hidden = inputs * expand
                if expand > 1:
                    x = nn.silu(norm()(conv(hidden, 1)(x)))
                x = nn.silu(norm()(conv(hidden, size, stride, hidden)(x)))
                squeezed = (hidden if self.mistake == "squeeze" else inputs) // 4
                x = SqueezeExcite(max(1, squeezed), nn.relu if self.mistake == "act" else nn.silu, nn.sigmoid)(x)
                x = norm()(conv(width, 1)(x))
                if residual.shape == x.shape:
                    x = StochasticDepth(0.2 * number / 16)(x, train) + residual
                number += 1
        x = nn.silu(norm()(conv(1280, 1)(x))).mean((1, 2))
        x = nn.Dropout(0.2)(x, deterministic=not train)
        return nn.Dense(self.classes)(x)


def efficientnet_b0(mistake: str = "") -> nn.Module:
    """Return torchvision's efficientnet_b0. Mistake `act` has another function in its gates."""
    return EfficientNet(mistake=mistake)


class ConvNeXtBlock(nn.Module):
    """ConvNeXt's block, with a scale for each channel."""

    exact: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the images and what the block adds."""
        width = x.shape[-1]
        y = nn.Conv(width, (7, 7), padding=3, feature_group_count=width)(x)
        y = nn.LayerNorm(epsilon=1e-6)(y)
        y = nn.gelu(nn.Dense(4 * width)(y), approximate=not self.exact)
        y = nn.Dense(width)(y)
        return x + self.param("layer_scale", nn.initializers.constant(1e-6), (width,)) * y


class ConvNeXt(nn.Module):
    """torchvision's convnext_tiny."""

    classes: int = 10
    depths: Sequence[int] = (3, 3, 9, 3)
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        for stage, (width, depth) in enumerate(zip((96, 192, 384, 768), self.depths, strict=True)):
            if stage == 0:
                x = nn.LayerNorm(epsilon=1e-6)(nn.Conv(width, (4, 4), strides=4, padding="VALID")(x))
            else:
                x = nn.Conv(width, (2, 2), strides=2, padding="VALID")(nn.LayerNorm(epsilon=1e-6)(x))
            for _ in range(depth):
                x = ConvNeXtBlock(self.mistake != "gelu")(x)
        x = nn.LayerNorm(epsilon=1e-6)(x.mean((1, 2)))
        return nn.Dense(self.classes)(x)


def convnext_tiny(mistake: str = "") -> nn.Module:
    """Return torchvision's convnext_tiny. Mistake `gelu` has flax's default approximation."""
    return ConvNeXt(mistake=mistake)


class RegNet(nn.Module):
    """torchvision's regnet_y_400mf."""

    classes: int = 10
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        norm = partial(BatchNorm, use_running_average=not train)
        x = nn.relu(norm()(nn.Conv(32, (3, 3), 2, padding=1, use_bias=False)(x)))
        for width, depth in ((48, 1), (104, 3), (208, 6), (440, 6)):
            for index in range(depth):
                stride, residual, inputs = (2 if index == 0 else 1), x, x.shape[-1]
                groups = 8 if self.mistake == "groups" else width // 8
                x = nn.relu(norm()(nn.Conv(width, (1, 1), use_bias=False)(x)))
                x = nn.Conv(width, (3, 3), stride, padding=1, feature_group_count=groups, use_bias=False)(x)
                x = nn.relu(norm()(x))
                x = SqueezeExcite(round(0.25 * inputs), nn.relu, nn.sigmoid)(x)
                x = norm()(nn.Conv(width, (1, 1), use_bias=False)(x))
                if index == 0:
                    residual = norm()(nn.Conv(width, (1, 1), stride, use_bias=False)(residual))
                x = nn.relu(x + residual)
        return nn.Dense(self.classes)(x.mean((1, 2)))


def regnet_y(mistake: str = "") -> nn.Module:
    """Return torchvision's regnet_y_400mf. Mistake `groups` takes the group's width for their number."""
    return RegNet(mistake=mistake)


def pool_up(x: jax.Array, fits: bool) -> jax.Array:
    """Return maxima of 3x3 pixels. A last window that reaches over the edge counts, unless it must fit."""
    over = [0 if fits else (length - 3) % 2 for length in x.shape[1:3]]
    return nn.max_pool(x, (3, 3), strides=(2, 2), padding=((0, over[0]), (0, over[1])))  # pyright: ignore


class SqueezeNet(nn.Module):
    """torchvision's squeezenet1_1."""

    classes: int = 10
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits."""
        x = nn.relu(nn.Conv(64, (3, 3), (2, 2), padding="VALID")(x))
        for place, (squeezed, expanded) in enumerate(
            ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
        ):
            if place in (0, 2, 4):
                x = pool_up(x, self.mistake == "floor")
            x = nn.relu(nn.Conv(squeezed, (1, 1))(x))
            one = nn.relu(nn.Conv(expanded, (1, 1))(x))
            three = nn.relu(nn.Conv(expanded, (3, 3), padding="SAME")(x))
            x = jnp.concatenate([three, one] if self.mistake == "order" else [one, three], axis=-1)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.relu(nn.Conv(self.classes, (1, 1))(x)).mean((1, 2))


def squeezenet(mistake: str = "") -> nn.Module:
    """Return torchvision's squeezenet1_1. Mistake `order` joins the 3x3 part first, `floor` drops a last window."""
    return SqueezeNet(mistake=mistake)


class Attention(nn.Module):
    """Attention of images on themselves, with query, key and value in one dense layer."""

    heads: int
    mistake: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return tokens."""
        count, tokens, width = x.shape
        size = width // self.heads
        qkv = nn.Dense(3 * width, name="qkv")(x).reshape(count, tokens, 3, self.heads, size)
        q, k, v = jnp.moveaxis(qkv, 2, 0)
        scale = width**-0.5 if self.mistake == "scale" else size**-0.5
        weights = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale)
        x = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(count, tokens, width)
        return nn.Dense(width, name="proj")(x)


class ViT(nn.Module):
    """timm's vit_small_patch16_224 for images of 64x64 pixels."""

    classes: int = 10
    width: int = 384
    depth: int = 12
    heads: int = 6
    own_attention: bool = False
    mistake: str = ""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        x = nn.Conv(self.width, (16, 16), strides=(16, 16), padding="VALID", name="patch_embed")(x)
        x = x.reshape(x.shape[0], -1, self.width)
        token = self.param("cls_token", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("pos_embed", nn.initializers.normal(0.02), (1, x.shape[1], self.width))
        for index in range(self.depth):
            y = nn.LayerNorm(epsilon=1e-6, name=f"norm1_{index}")(x)
            if self.own_attention:
                y = nn.MultiHeadDotProductAttention(self.heads, name=f"attn_{index}")(y, y)
            else:
                y = Attention(self.heads, self.mistake, name=f"attn_{index}")(y)
            x = x + y
            y = nn.LayerNorm(epsilon=1e-6, name=f"norm2_{index}")(x)
            y = nn.gelu(nn.Dense(4 * self.width, name=f"fc1_{index}")(y), approximate=False)
            x = x + nn.Dense(self.width, name=f"fc2_{index}")(y)
        x = nn.LayerNorm(epsilon=1e-6, name="norm")(x)
        return nn.Dense(self.classes, name="head")(x[:, 0])


def vit_small(mistake: str = "", depth: int = 12, own_attention: bool = False) -> nn.Module:
    """Return timm's vit_small_patch16_224. Mistake `scale` divides the scores by the root of the whole width."""
    return ViT(depth=depth, mistake=mistake, own_attention=own_attention)


def flaim_convnext(mistake: str = "", classes: int = 10) -> nn.Module:
    """Return the smallest ConvNeXt of the package flaim, which timm calls convnext_atto.

    Mistake `scale` has no scale for each channel.
    """
    random: Any = jax.random
    random.KeyArray = jax.Array  # flaim is older than the removal of this name
    model = importlib.import_module("flaim.models.convnext").ConvNeXt
    scale = None if mistake else 1e-6
    return model((2, 2, 6, 2), (40, 80, 160, 320), layer_scale_init_value=scale, n_classes=classes)
