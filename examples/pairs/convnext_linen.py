"""A small ConvNeXt in flax.linen (Liu et al. 2022), with `nn.gelu` as it comes: the tanh approximation.

Beside it: `convnext_torch.py`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax


class Block(nn.Module):
    """Depthwise 7x7 convolution, layer norm, a wide hidden layer with GELU, layer scale, and the input."""

    approximate: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations of the shape of x [N, H, W, C]."""
        channels = x.shape[-1]
        y = nn.Conv(channels, (7, 7), feature_group_count=channels, dtype=self.dtype, name="dwconv")(x)
        y = nn.LayerNorm(dtype=self.dtype, name="norm")(y)
        y = nn.Dense(4 * channels, dtype=self.dtype, name="pwconv1")(y)
        y = nn.gelu(y, approximate=self.approximate)
        y = nn.Dense(channels, dtype=self.dtype, name="pwconv2")(y)
        gamma = self.param("gamma", nn.initializers.constant(1e-6), (channels,))
        return x + y * gamma.astype(y.dtype)


class ConvNeXt(nn.Module):
    """Patches, stages of blocks with strided 2x2 convolutions between, global average pool, layer norm, dense."""

    depths: Sequence[int]
    width: int
    classes: int
    approximate: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits [N, classes] of images [N, H, W, C]."""
        halved = partial(nn.Conv, kernel_size=(2, 2), strides=(2, 2), padding="VALID", dtype=self.dtype)
        x = halved(self.width)(x)
        x = nn.LayerNorm(dtype=self.dtype)(x)
        for stage, depth in enumerate(self.depths):
            if stage:
                x = nn.LayerNorm(dtype=self.dtype)(x)
                x = halved(self.width * 2**stage)(x)
            for _ in range(depth):
                x = Block(self.approximate, self.dtype)(x)
        x = nn.LayerNorm(dtype=self.dtype)(x.mean(axis=(1, 2)))
        return nn.Dense(self.classes, dtype=self.dtype)(x)


def model(
    approximate: bool = True, depths: Sequence[int] = (1, 2), width: int = 8, classes: int = 10, dtype: Any = None
) -> nn.Module:
    """Return a small ConvNeXt. `approximate` is the argument of nn.gelu."""
    return ConvNeXt(depths, width, classes, approximate, dtype)
