"""The CNN of Flax's MNIST tutorial in flax.nnx. It flattens images in height, width, channel order.

Beside it: `cnn_linen.py`, the same in linen, and `cnn_torch.py`, which flattens in channel, height, width order.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx


class CNN(nnx.Module):
    """Two 3x3 convolutions with pooling, two dense layers with dropout between."""

    def __init__(self, size: int, features: int, hidden: int, classes: int, *, dtype: Any, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(3, features, kernel_size=(3, 3), dtype=dtype, rngs=rngs)
        self.conv2 = nnx.Conv(features, 2 * features, kernel_size=(3, 3), dtype=dtype, rngs=rngs)
        self.avg_pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.linear1 = nnx.Linear((size // 4) ** 2 * 2 * features, hidden, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(rate=0.5, rngs=rngs)
        self.linear2 = nnx.Linear(hidden, classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits [N, classes] of images [N, H, W, C]."""
        x = self.avg_pool(nnx.relu(self.conv1(x)))
        x = self.avg_pool(nnx.relu(self.conv2(x)))
        x = x.reshape(x.shape[0], -1)
        x = self.dropout(nnx.relu(self.linear1(x)))
        return self.linear2(x)


def model(
    rngs: nnx.Rngs, size: int = 16, features: int = 8, hidden: int = 32, classes: int = 10, dtype: Any = None
) -> nnx.Module:
    """Return the CNN for images of `size` pixels. samestep gives `rngs` to a factory that names it."""
    return CNN(size, features, hidden, classes, dtype=dtype, rngs=rngs)
