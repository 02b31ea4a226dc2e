"""Stages of convolution, batch norm and ReLU with max-pooling between them: a small VGG-like CNN."""

from collections.abc import Sequence

import torch
from torch import nn

from torchbackend.layers import BatchNorm, Conv, Dense, GlobalAveragePool, MaxPool, relu_normalised
from torchbackend.precision import Policy


class ConvBlock(nn.Module):
    """3x3 convolution that keeps the image size, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, *, policy: Policy) -> None:
        super().__init__()
        self.conv = Conv(inputs, outputs, 3, policy=policy, padding=1, bias=False)
        self.norm = BatchNorm(outputs, policy=policy)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations of the same height and width."""
        return relu_normalised(self.norm(self.conv(x)))


class StagedCNN(nn.Module):
    """Two blocks a stage, 2x2 max-pool between stages, global average pool, dense."""

    def __init__(self, image: tuple[int, int, int], classes: int, *, policy: Policy, widths: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([])
        inputs = image[2]
        for width in widths:
            self.blocks.append(ConvBlock(inputs, width, policy=policy))
            self.blocks.append(ConvBlock(width, width, policy=policy))
            inputs = width
        self.pool = MaxPool(2)
        self.average = GlobalAveragePool()
        self.dense = Dense(inputs, classes, policy=policy)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        x = images
        for index, block in enumerate(self.blocks):
            if index and index % 2 == 0:
                x = self.pool(x)
            x = block(x)
        return self.dense(self.average(x))
