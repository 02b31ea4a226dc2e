"""A residual network in flax.linen, as it is often written: convolutions and pooling padded by SAME.

Beside it: `resnet_torch.py`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the input, projected where its shape changes."""

    features: int
    strides: int
    padding: Any
    conv: Callable[..., Any]
    norm: Callable[..., Any]
    last_scale: Callable[..., Any]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations, height and width divided by the stride and rounded up."""
        residual = x
        if self.strides != 1 or x.shape[-1] != self.features:
            residual = self.conv(self.features, (1, 1), strides=self.strides, name="conv_proj")(x)
            residual = self.norm(name="norm_proj")(residual)
        y = self.conv(self.features, (3, 3), strides=self.strides, padding=self.padding)(x)
        y = nn.relu(self.norm()(y))
        y = self.conv(self.features, (3, 3), padding=self.padding)(y)
        y = self.norm(scale_init=self.last_scale)(y)
        return nn.relu(residual + y)


class ResNet(nn.Module):
    """Strided 3x3 stem, max-pool, stages of basic blocks, global average pool, dense."""

    depths: Sequence[int]
    width: int
    classes: int
    conv_padding: Any
    pool_padding: Any
    zero_init: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        """Return logits [N, classes] of images [N, H, W, C]."""
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=self.dtype)
        last_scale = nn.initializers.zeros if self.zero_init else nn.initializers.ones
        block = partial(BasicBlock, padding=self.conv_padding, conv=conv, norm=norm, last_scale=last_scale)

        x = conv(self.width, (3, 3), strides=2, padding=self.conv_padding, name="conv_init")(x)
        x = nn.relu(norm(name="norm_init")(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=self.pool_padding)
        for stage, depth in enumerate(self.depths):
            for index in range(depth):
                x = block(self.width * 2**stage, strides=2 if stage and index == 0 else 1)(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.classes, dtype=self.dtype)(x)


# For a stride-2 3x3 window on an even image, SAME pads only the far edges: ((0, 1), (0, 1)).
PADDINGS = {"same": ("SAME", "SAME"), "pool-same": (1, "SAME"), "explicit": (1, ((1, 1), (1, 1)))}


def model(
    padding: str = "same",
    zero_init: bool = True,
    depths: Sequence[int] = (2, 2),
    width: int = 8,
    classes: int = 10,
    dtype: Any = None,
) -> nn.Module:
    """Return a small ResNet. `padding` is `same`, `pool-same` (convolutions are explicit) or `explicit`."""
    conv_padding, pool_padding = PADDINGS[padding]
    return ResNet(depths, width, classes, conv_padding, pool_padding, zero_init, dtype)


def deep(width: int = 8, classes: int = 10, dtype: Any = None) -> nn.Module:
    """Return a narrow ResNet of 160 layers: stem, 79 blocks of two convolutions, dense."""
    return model("explicit", depths=(26, 27, 26), width=width, classes=classes, dtype=dtype)
