"""An hourglass in PyTorch, with kinds of layers that the other pairs lack.

Grouped, depthwise and transposed convolutions, group norm, layer norm, dropout, layers without bias.
Beside it: `hourglass_linen.py`.
"""

import torch
from torch import nn


class Hourglass(nn.Module):
    """The image is halved, transformed and enlarged again. Then global average pool, layer norm, dropout, linear."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=2, padding=1, bias=False),
            nn.GroupNorm(4, width),
            nn.ReLU(),
        )
        self.middle = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.Conv2d(width, 2 * width, 3, padding=2, dilation=2, groups=2),
            nn.GroupNorm(4, 2 * width),
            nn.SiLU(),
        )
        self.up = nn.Sequential(nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), nn.ReLU())
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        x = self.up(self.middle(self.down(x)))
        return self.head(self.dropout(self.norm(x.mean(dim=(2, 3)))))


def model(width: int = 8, classes: int = 10) -> nn.Module:
    """Return the hourglass."""
    return Hourglass(width, classes)
