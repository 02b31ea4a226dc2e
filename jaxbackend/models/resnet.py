"""Residual networks: He et al. 2016, in the v1.5 form. It has a bottleneck's stride on the 3x3 convolution."""

import importlib
from collections.abc import Sequence

import jax
from flax import nnx

from jaxbackend.layers import Dense, GlobalAveragePool, MaxPool, relu_normalised, relu_sum
from jaxbackend.models.parts import ConvNorm
from jaxbackend.precision import Policy


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions and the input, projected where its shape changes."""

    expansion = 1

    def __init__(self, inputs: int, width: int, outputs: int, *, policy: Policy, stride: int = 1) -> None:
        self.first = ConvNorm(inputs, width, 3, policy=policy, stride=stride)
        self.last = ConvNorm(width, outputs, 3, policy=policy)
        changed = stride != 1 or inputs != outputs
        self.shortcut = ConvNorm(inputs, outputs, 1, policy=policy, stride=stride) if changed else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations, height and width divided by the stride and rounded up."""
        y = self.last(relu_normalised(self.first(x)))
        return relu_sum(y, x if self.shortcut is None else self.shortcut(x))


class Bottleneck(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions and the input, projected where its shape changes."""

    expansion = 4

    def __init__(self, inputs: int, width: int, outputs: int, *, policy: Policy, stride: int = 1) -> None:
        reduce, spatial = _strides(stride)
        self.first = ConvNorm(inputs, width, 1, policy=policy, stride=reduce)
        self.middle = ConvNorm(width, width, 3, policy=policy, stride=spatial)
        self.last = ConvNorm(width, outputs, 1, policy=policy)
        changed = stride != 1 or inputs != outputs
        self.shortcut = ConvNorm(inputs, outputs, 1, policy=policy, stride=stride) if changed else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations, height and width divided by the stride and rounded up."""
        y = self.last(relu_normalised(self.middle(relu_normalised(self.first(x)))))
        return relu_sum(y, x if self.shortcut is None else self.shortcut(x))


class ResNet(nnx.Module):
    """Stem, stages of residual blocks, each half the size of the one before, global average pool, dense.

    `block` is `basic` or `bottleneck`. `depths` and `widths` give the blocks and inner channels of each stage. `outer`
    gives the output channels of each stage. By default a bottleneck has four times as many as inside. `stem` is
    `imagenet` (7x7 stride 2, 3x3 max-pool stride 2) or `cifar` (3x3).
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        classes: int,
        *,
        policy: Policy,
        block: str,
        depths: Sequence[int],
        widths: Sequence[int],
        stem: str,
        outer: Sequence[int] = (),
    ) -> None:
        large = stem == "imagenet"
        kind = {"basic": BasicBlock, "bottleneck": Bottleneck}[block]
        self.stem = ConvNorm(image[2], widths[0], 7 if large else 3, policy=policy, stride=2 if large else 1)
        self.pool = MaxPool(3, stride=2, padding=1) if large else None
        self.blocks = nnx.List([])
        inputs = widths[0]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            outputs = outer[stage] if outer else width * kind.expansion
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                self.blocks.append(kind(inputs, width, outputs, policy=policy, stride=stride))
                inputs = outputs
        self.fuses = policy.fuses_batch_norm
        self.use_running_average = False  # nnx.Module.train and eval set it
        self.average = GlobalAveragePool()
        self.dense = Dense(inputs, classes, policy=policy)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return logits [N, classes]."""
        x = relu_normalised(self.stem(images))
        if self.pool is not None:
            x = self.pool(x)
        if self.fuses and not self.use_running_average:
            fused = importlib.import_module("jaxbackend.fused")
            return self.dense(self.average(fused.run_bottlenecks(self.blocks, x)))
        for block in self.blocks:
            x = block(x)
        return self.dense(self.average(x))


def _strides(stride: int) -> tuple[int, int]:
    """Return the strides of a bottleneck's first 1x1 and its 3x3 convolution (reversed in v1)."""
    return 1, stride
