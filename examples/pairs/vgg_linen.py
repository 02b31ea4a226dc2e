"""A small VGG with batch norm in flax.linen. BatchNorm keeps its defaults, and momentum 0.99 is torch's 0.01.

Beside it: `vgg_torch.py`.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax


class VGG(nn.Module):
    """3x3 convolutions with batch norm, `M` for a max-pool between them, global average pool, dense."""

    layers: Sequence[int | str]
    classes: int
    momentum: float
    bias: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        """Return logits [N, classes] of images [N, H, W, C]."""
        for features in self.layers:
            if isinstance(features, str):
                x = nn.max_pool(x, (2, 2), strides=(2, 2))
            else:
                x = nn.Conv(features, (3, 3), use_bias=self.bias, dtype=self.dtype)(x)
                x = nn.BatchNorm(use_running_average=not is_training, momentum=self.momentum, dtype=self.dtype)(x)
                x = nn.relu(x)
        x = x.mean(axis=(1, 2))
        return nn.Dense(self.classes, dtype=self.dtype)(x)


def model(momentum: float = 0.99, bias: bool = True, classes: int = 10, dtype: Any = None) -> nn.Module:
    """Return the VGG. `momentum` is Flax's, the weight of the old statistics.

    `bias` is the convolutions', which batch norm takes out again: its gradient is zero but for rounding.
    """
    return VGG((8, 8, "M", 16, 16, "M", 32), classes, momentum, bias, dtype)
