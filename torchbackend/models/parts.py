"""Parts of several model families."""

import torch
from torch import nn

from torchbackend.layers import BatchNorm, Conv
from torchbackend.precision import Policy


class ConvNorm(nn.Module):
    """Convolution that keeps the image size up to its stride, batch norm."""

    def __init__(
        self, inputs: int, outputs: int, size: int, *, policy: Policy, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = Conv(
            inputs, outputs, size, policy=policy, stride=stride, padding=size // 2, groups=groups, bias=False
        )
        self.norm = BatchNorm(outputs, policy=policy)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations, height and width divided by the stride and rounded up."""
        return self.norm(self.conv(x))
