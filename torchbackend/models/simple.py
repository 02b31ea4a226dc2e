"""One convolution, one dense layer: the CNN of the classic Keras tutorial."""

import torch
from torch import nn

from torchbackend.layers import Conv, Dense, Flatten, MaxPool, relu
from torchbackend.precision import Policy


class SimpleCNN(nn.Module):
    """3x3 convolution that keeps the image size, ReLU, 2x2 max-pool, flatten, dense.

    The tutorial does not pad. Padding keeps the edge pixels of 8x8 digits.
    """

    def __init__(self, image: tuple[int, int, int], classes: int, *, policy: Policy, features: int) -> None:
        super().__init__()
        height, width, channels = image
        self.conv = Conv(channels, features, 3, policy=policy, padding=1)
        self.pool = MaxPool(2)
        self.flatten = Flatten()
        self.dense = Dense((height // 2) * (width // 2) * features, classes, policy=policy)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes]."""
        x = self.pool(relu(self.conv(images)))
        return self.dense(self.flatten(x))
