"""An hourglass in flax.linen, with kinds of layers that the other pairs lack.

Grouped, depthwise and transposed convolutions, group norm, layer norm, dropout, layers without bias.
Beside it: `hourglass_torch.py`.
"""

from typing import Any

import flax.linen as nn
import jax


class Hourglass(nn.Module):
    """The image is halved, transformed and enlarged again. Then global average pool, layer norm, dropout, dense."""

    width: int
    classes: int
    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Return logits [N, classes] of images [N, H, W, C]."""
        width, dtype = self.width, self.dtype
        x = nn.Conv(width, (4, 4), strides=(2, 2), padding=((1, 1), (1, 1)), use_bias=False, dtype=dtype)(x)
        x = nn.relu(nn.GroupNorm(num_groups=4, epsilon=self.epsilon, dtype=dtype)(x))
        x = nn.Conv(width, (3, 3), feature_group_count=width, use_bias=False, dtype=dtype, name="depthwise")(x)
        x = nn.Conv(2 * width, (3, 3), kernel_dilation=2, feature_group_count=2, dtype=dtype, name="grouped")(x)
        x = nn.silu(nn.GroupNorm(num_groups=4, epsilon=self.epsilon, dtype=dtype)(x))
        x = nn.ConvTranspose(width, (4, 4), strides=(2, 2), padding="SAME", dtype=dtype)(x)
        x = nn.relu(x).mean(axis=(1, 2))
        x = nn.LayerNorm(epsilon=self.epsilon, dtype=dtype)(x)
        x = nn.Dropout(0.1)(x, deterministic=deterministic)
        return nn.Dense(self.classes, use_bias=False, dtype=dtype)(x)


def model(epsilon: float = 1e-5, width: int = 8, classes: int = 10, dtype: Any = None) -> nn.Module:
    """Return the hourglass. `epsilon` is torch's default 1e-5. Flax's default is 1e-6."""
    return Hourglass(width, classes, epsilon, dtype)
