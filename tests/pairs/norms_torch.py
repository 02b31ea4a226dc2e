"""The same norms, on torch's side."""

import torch
import torch.nn.functional as F
from torch import nn


class Scale(nn.Module):
    """An instance norm that is a function, with a scale and no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, width, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images with moments of their own."""
        return F.instance_norm(x) * self.gamma


def batch() -> nn.Module:
    """Return the model with batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def instance() -> nn.Module:
    """Return the model with instance norm."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1),
        Scale(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, 2, 1),
        Scale(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
