"""The CNN of Flax's MNIST tutorial in flax.linen. It flattens images in height, width, channel order.

Beside it: `cnn_nnx.py`, the same in nnx, and `cnn_torch.py`, which flattens in channel, height, width order.
"""

from typing import Any

import flax.linen as nn
import jax


class CNN(nn.Module):
    """Two 3x3 convolutions with pooling, two dense layers with dropout between."""

    features: int
    hidden: int
    classes: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, *, training: bool) -> jax.Array:
        """Return logits [N, classes] of images [N, H, W, C]."""
        x = nn.relu(nn.Conv(self.features, kernel_size=(3, 3), dtype=self.dtype)(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(2 * self.features, kernel_size=(3, 3), dtype=self.dtype)(x))
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(self.hidden, dtype=self.dtype)(x))
        x = nn.Dropout(0.5, deterministic=not training)(x)
        return nn.Dense(self.classes, dtype=self.dtype)(x)


def model(features: int = 8, hidden: int = 32, classes: int = 10, dtype: Any = None) -> nn.Module:
    """Return the CNN. Linen learns the image's size at the first call."""
    return CNN(features, hidden, classes, dtype)
