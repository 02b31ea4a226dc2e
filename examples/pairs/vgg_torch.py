"""A small VGG with batch norm in PyTorch. BatchNorm2d keeps its defaults, and momentum 0.1 is Flax's 0.9.

Beside it: `vgg_linen.py`.
"""

from collections.abc import Sequence

import torch
from torch import nn


class VGG(nn.Module):
    """3x3 convolutions with batch norm, `M` for a max-pool between them, global average pool, fully connected layer."""

    def __init__(self, layers: Sequence[int | str], classes: int, momentum: float, bias: bool) -> None:
        super().__init__()
        made: list[nn.Module] = []
        inputs = 3
        for features in layers:
            if isinstance(features, str):
                made.append(nn.MaxPool2d(2))
            else:
                convolution = nn.Conv2d(inputs, features, 3, padding=1, bias=bias)
                made += [convolution, nn.BatchNorm2d(features, momentum=momentum), nn.ReLU(inplace=True)]
                inputs = features
        self.features = nn.Sequential(*made)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        return self.classifier(self.features(x).mean(dim=(2, 3)))


def model(momentum: float = 0.1, bias: bool = True, classes: int = 10) -> nn.Module:
    """Return the VGG. `momentum` is torch's, the weight of the new statistics.

    `bias` is the convolutions', which batch norm takes out again: its gradient is zero but for rounding.
    """
    return VGG((8, 8, "M", 16, 16, "M", 32), classes, momentum, bias)


def forgetful(momentum: float = 0.1, bias: bool = True, classes: int = 10) -> nn.Module:
    """Return the VGG without its fourth convolution, lost when the list was copied."""
    return VGG((8, 8, "M", 16, "M", 32), classes, momentum, bias)
