"""Residual networks: He et al. 2016, in the v1.5 form. It has a bottleneck's stride on the 3x3 convolution."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torchbackend.layers import Dense, GlobalAveragePool, MaxPool, relu_normalised, relu_sum
from torchbackend.models.parts import ConvNorm
from torchbackend.precision import Policy


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the input, projected where its shape changes."""

    expansion = 1

    def __init__(self, inputs: int, width: int, outputs: int, *, policy: Policy, stride: int = 1) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, width, 3, policy=policy, stride=stride)
        self.last = ConvNorm(width, outputs, 3, policy=policy)
        changed = stride != 1 or inputs != outputs
        self.shortcut = ConvNorm(inputs, outputs, 1, policy=policy, stride=stride) if changed else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations, height and width divided by the stride and rounded up."""
        y = self.last(relu_normalised(self.first(x)))
        return relu_sum(y, x if self.shortcut is None else self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and the input, projected where its shape changes."""

    expansion = 4

    def __init__(self, inputs: int, width: int, outputs: int, *, policy: Policy, stride: int = 1) -> None:
        super().__init__()
        reduce, spatial = _strides(stride)
        self.first = ConvNorm(inputs, width, 1, policy=policy, stride=reduce)
        self.middle = ConvNorm(width, width, 3, policy=policy, stride=spatial)
        self.last = ConvNorm(width, outputs, 1, policy=policy)
        changed = stride != 1 or inputs != outputs
        self.shortcut = ConvNorm(inputs, outputs, 1, policy=policy, stride=stride) if changed else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations, height and width divided by the stride and rounded up."""
        y = self.last(relu_normalised(self.middle(relu_normalised(self.first(x)))))
        return relu_sum(y, x if self.shortcut is None else self.shortcut(x))


class ResNet(nn.Module):
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
        super().__init__()
        large = stem == "imagenet"
        kind = {"basic": BasicBlock, "bottleneck": Bottleneck}[block]
        self.stem = ConvNorm(image[2], widths[0], 7 if large else 3, policy=policy, stride=2 if large else 1)
        self.pool = MaxPool(3, stride=2, padding=1) if large else None
        self.blocks = nn.ModuleList([])
        inputs = widths[0]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            outputs = outer[stage] if outer else width * kind.expansion
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                self.blocks.append(kind(inputs, width, outputs, policy=policy, stride=stride))
                inputs = outputs
        self.fused: Any = importlib.import_module("torchbackend.fused") if policy.fuses_batch_norm else None
        self.average = GlobalAveragePool()
        self.dense = Dense(inputs, classes, policy=policy)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        x = relu_normalised(self.stem(images))
        if self.pool is not None:
            x = self.pool(x)
        if self.fused is not None and self.training:
            return self.dense(self.average(self.fused.run_bottlenecks(self.blocks, x)))
        for block in self.blocks:
            x = block(x)
        return self.dense(self.average(x))


def _strides(stride: int) -> tuple[int, int]:
    """Return the strides of a bottleneck's first 1x1 and its 3x3 convolution (reversed in v1)."""
    return 1, stride
