"""The CNN of Flax's MNIST tutorial in PyTorch. It flattens images in channel, height, width order.

Beside it: `cnn_linen.py` and `cnn_nnx.py`, which flatten in height, width, channel order.
"""

import torch
import torch.nn.functional as F
from torch import nn


class CNN(nn.Module):
    """Two 3x3 convolutions with pooling, two fully connected layers with dropout between."""

    def __init__(self, size: int, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, features, 3, padding=1)
        self.conv2 = nn.Conv2d(features, 2 * features, 3, padding=1)
        self.dropout = nn.Dropout(0.5)
        self.fc1 = nn.Linear(2 * features * (size // 4) ** 2, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = self.dropout(F.relu(self.fc1(x)))
        return self.fc2(x)


def model(size: int = 16, features: int = 8, hidden: int = 32, classes: int = 10) -> nn.Module:
    """Return the CNN for images of `size` pixels."""
    return CNN(size, features, hidden, classes)
