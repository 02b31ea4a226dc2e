"""U-Net: Ronneberger et al. 2015, with batch norm, and padded convolutions so that every pixel has logits."""

from collections.abc import Sequence

import torch
from torch import nn

from torchbackend.layers import Concatenate, Conv, ConvTranspose, MaxPool, relu_normalised
from torchbackend.models.parts import ConvNorm
from torchbackend.precision import Policy


class DoubleConv(nn.Module):
    """Two 3x3 convolutions that keep the image size, each followed by batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, *, policy: Policy) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, policy=policy)
        self.last = ConvNorm(outputs, outputs, 3, policy=policy)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations of the same height and width."""
        return relu_normalised(self.last(relu_normalised(self.first(x))))


class Up(nn.Module):
    """2x2 transposed convolution with stride 2 to half the channels, joined to the skip, and two convolutions."""

    def __init__(self, inputs: int, outputs: int, *, policy: Policy) -> None:
        super().__init__()
        self.enlarge = ConvTranspose(inputs, outputs, 2, policy=policy, stride=2)
        self.join = Concatenate()
        self.convs = DoubleConv(2 * outputs, outputs, policy=policy)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        """Return activations of the skip's shape."""
        return self.convs(self.join(skip, self.enlarge(x)))


class UNet(nn.Module):
    """Down a path of halved images, up again to every skip on the way, 1x1 convolution.

    `widths` gives the channels of each size, from the images' own down.
    """

    def __init__(self, image: tuple[int, int, int], classes: int, *, policy: Policy, widths: Sequence[int]) -> None:
        super().__init__()
        self.down = nn.ModuleList([])
        inputs = image[2]
        for width in widths:
            self.down.append(DoubleConv(inputs, width, policy=policy))
            inputs = width
        self.pool = MaxPool(2)
        self.up = nn.ModuleList([])
        for width in widths[-2::-1]:
            self.up.append(Up(inputs, width, policy=policy))
            inputs = width
        self.pointwise = Conv(inputs, classes, 1, policy=policy)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes, H, W]."""
        x, skips = images, []
        for index, convs in enumerate(self.down):
            if index:
                skips.append(x)
                x = self.pool(x)
            x = convs(x)
        for up in self.up:
            x = up(x, skips.pop())
        return self.pointwise(x)
