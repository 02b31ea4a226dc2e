"""VGG: Simonyan and Zisserman 2015, Very Deep Convolutional Networks, without batch norm as in the paper."""

from collections.abc import Sequence

import torch
from torch import nn

from torchbackend.layers import Conv, Dense, Flatten, MaxPool, relu
from torchbackend.precision import Policy


class Stage(nn.Module):
    """3x3 convolutions that keep the image size, each followed by ReLU, and 2x2 max-pool."""

    def __init__(self, inputs: int, width: int, depth: int, *, policy: Policy) -> None:
        super().__init__()
        self.convs = nn.ModuleList([])
        for index in range(depth):
            self.convs.append(Conv(width if index else inputs, width, 3, policy=policy, padding=1))
        self.pool = MaxPool(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations of half the height and width, rounded down."""
        for conv in self.convs:
            x = relu(conv(x))
        return self.pool(x)


class VGG(nn.Module):
    """Stages of convolutions, flatten, dense layers with ReLU between them.

    `depths` and `widths` give the convolutions and channels of each stage. `hidden` gives the widths of the dense
    layers before the last. The paper's dropout is left out, because twins cannot share random numbers.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        classes: int,
        *,
        policy: Policy,
        depths: Sequence[int],
        widths: Sequence[int],
        hidden: Sequence[int],
    ) -> None:
        super().__init__()
        height, width, channels = image
        self.stages = nn.ModuleList([])
        for depth, outputs in zip(depths, widths, strict=True):
            self.stages.append(Stage(channels, outputs, depth, policy=policy))
            height, width, channels = height // 2, width // 2, outputs
        self.flatten = Flatten()
        self.hidden = nn.ModuleList([])
        inputs = height * width * channels
        for outputs in hidden:
            self.hidden.append(Dense(inputs, outputs, policy=policy))
            inputs = outputs
        self.dense = Dense(inputs, classes, policy=policy)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        x = images
        for stage in self.stages:
            x = stage(x)
        x = self.flatten(x)
        for dense in self.hidden:
            x = relu(dense(x))
        return self.dense(x)
