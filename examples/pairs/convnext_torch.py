"""A small ConvNeXt in PyTorch (Liu et al. 2022), with `nn.GELU` as it comes: the exact function.

Beside it: `convnext_linen.py`.
"""

from collections.abc import Sequence

import torch
from torch import nn


class Block(nn.Module):
    """Depthwise 7x7 convolution, layer norm, a wide hidden layer with GELU, layer scale, and the input."""

    def __init__(self, channels: int, approximate: str) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU(approximate)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(1e-6 * torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations of the shape of x [N, C, H, W]."""
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.pwconv2(self.act(self.pwconv1(self.norm(y))))
        return x + (self.gamma * y).permute(0, 3, 1, 2)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of an image [N, C, H, W]."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise over C."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Patches, stages of blocks with strided 2x2 convolutions between, global average pool, layer norm, head."""

    def __init__(self, depths: Sequence[int], width: int, classes: int, approximate: str) -> None:
        super().__init__()
        channels = width
        layers: list[nn.Module] = [nn.Conv2d(3, width, 2, stride=2), LayerNorm2d(width, eps=1e-6)]
        for stage, depth in enumerate(depths):
            if stage:
                layers += [LayerNorm2d(channels, eps=1e-6), nn.Conv2d(channels, 2 * channels, 2, stride=2)]
                channels *= 2
            layers += [Block(channels, approximate) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        return self.head(self.norm(self.layers(x).mean([-2, -1])))


def model(approximate: str = "none", depths: Sequence[int] = (1, 2), width: int = 8, classes: int = 10) -> nn.Module:
    """Return a small ConvNeXt. `approximate` is the argument of nn.GELU, `none` or `tanh`."""
    return ConvNeXt(depths, width, classes, approximate)
