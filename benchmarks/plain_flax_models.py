"""The networks of `plain_jax.py`, in linen, as Flax's examples and the papers' public ports write them.

They compute in bfloat16 with float32 parameters. Dropout and stochastic depth are left out, as in samestep's workloads.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

Conv = partial(nn.Conv, dtype=jnp.bfloat16)
Dense = partial(nn.Dense, dtype=jnp.bfloat16)
LayerNorm = partial(nn.LayerNorm, epsilon=1e-6, dtype=jnp.bfloat16)


def batch_norm(train: bool) -> Any:
    return partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=jnp.bfloat16)


class Bottleneck(nn.Module):
    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        conv, norm = partial(Conv, use_bias=False), batch_norm(train)
        y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.width, (3, 3), self.stride)(y)))
        y = norm(scale_init=nn.initializers.zeros_init())(conv(4 * self.width, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.width, (1, 1), self.stride)(x))
        return nn.relu(x + y)


class Basic(nn.Module):
    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        conv, norm = partial(Conv, use_bias=False), batch_norm(train)
        y = nn.relu(norm()(conv(self.width, (3, 3), self.stride)(x)))
        y = norm(scale_init=nn.initializers.zeros_init())(conv(self.width, (3, 3))(y))
        if x.shape != y.shape:
            x = norm()(conv(self.width, (1, 1), self.stride)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    classes: int
    block: Any = Bottleneck
    depths: Sequence[int] = (3, 4, 6, 3)
    small: bool = False  # for small images: the stem keeps their size

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        if self.small:
            x = Conv(64, (3, 3), use_bias=False)(x)
        else:
            x = Conv(64, (7, 7), 2, [(3, 3), (3, 3)], use_bias=False)(x)
        x = nn.relu(batch_norm(train)()(x))
        if not self.small:
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, depth in enumerate(self.depths):
            for index in range(depth):
                x = self.block(64 * 2**stage, 2 if stage and index == 0 else 1)(x, train)
        return Dense(self.classes)(x.mean((1, 2)))


class CifarNet(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        for width in (32, 64, 128):
            for _ in range(2):
                x = nn.relu(batch_norm(train)()(Conv(width, (3, 3), use_bias=False)(x)))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return Dense(self.classes)(x.mean((1, 2)))


class VGG(nn.Module):
    classes: int
    depths: Sequence[int] = (2, 2, 3, 3, 3)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for stage, depth in enumerate(self.depths):
            for _ in range(depth):
                x = nn.relu(Conv(min(64 * 2**stage, 512), (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = nn.relu(Dense(4096)(x))
        return Dense(self.classes)(x)


class InvertedResidual(nn.Module):
    width: int
    expansion: int
    stride: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        conv, norm, y = partial(Conv, use_bias=False), batch_norm(train), x
        inner = self.expansion * x.shape[-1]
        if self.expansion != 1:
            y = jax.nn.relu6(norm()(conv(inner, (1, 1))(y)))
        y = jax.nn.relu6(norm()(conv(inner, (3, 3), self.stride, feature_group_count=inner)(y)))
        y = norm()(conv(self.width, (1, 1))(y))
        return x + y if x.shape == y.shape else y


class MobileNetV2(nn.Module):
    classes: int
    widths: Sequence[int] = (16, 24, 32, 64, 96, 160, 320)
    depths: Sequence[int] = (1, 2, 3, 4, 3, 3, 1)
    strides: Sequence[int] = (1, 2, 2, 2, 1, 2, 1)

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        conv, norm = partial(Conv, use_bias=False), batch_norm(train)
        x = jax.nn.relu6(norm()(conv(32, (3, 3), 2)(x)))
        for stage, (width, depth, stride) in enumerate(zip(self.widths, self.depths, self.strides, strict=True)):
            for index in range(depth):
                x = InvertedResidual(width, 6 if stage else 1, 1 if index else stride)(x, train)
        x = jax.nn.relu6(norm()(conv(1280, (1, 1))(x)))
        return Dense(self.classes)(x.mean((1, 2)))


class ConvNeXtBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = x.shape[-1]
        y = LayerNorm()(Conv(width, (7, 7), feature_group_count=width)(x))
        y = Dense(width)(jax.nn.gelu(Dense(4 * width)(y), approximate=False))
        scale = self.param("scale", nn.initializers.constant(1e-6), (width,))
        return x + scale.astype(y.dtype) * y


class ConvNeXt(nn.Module):
    classes: int
    depths: Sequence[int] = (3, 3, 9, 3)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = LayerNorm()(Conv(96, (4, 4), 4)(x))
        for stage, depth in enumerate(self.depths):
            if stage:
                x = Conv(96 * 2**stage, (2, 2), 2)(LayerNorm()(x))
            for _ in range(depth):
                x = ConvNeXtBlock()(x)
        return Dense(self.classes)(LayerNorm()(x.mean((1, 2))))


class UNet(nn.Module):
    classes: int
    widths: Sequence[int] = (64, 128, 256, 512, 1024)

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        def double(x: Any, width: int) -> Any:
            for _ in range(2):
                x = nn.relu(batch_norm(train)()(Conv(width, (3, 3), use_bias=False)(x)))
            return x

        skips = list[Any]()
        for index, width in enumerate(self.widths):
            if index:
                skips.append(x)
                x = nn.max_pool(x, (2, 2), (2, 2))
            x = double(x, width)
        for width in self.widths[-2::-1]:
            x = nn.ConvTranspose(width, (2, 2), (2, 2), dtype=jnp.bfloat16)(x)
            x = double(jnp.concatenate([skips.pop(), x], -1), width)
        return Conv(self.classes, (1, 1))(x)
