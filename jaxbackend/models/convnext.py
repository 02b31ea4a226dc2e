"""ConvNeXt: Liu et al. 2022, A ConvNet for the 2020s."""

from collections.abc import Sequence

import jax
from flax import nnx

from jaxbackend.layers import Conv, Dense, GlobalAveragePool, LayerNorm, LayerScale, gelu
from jaxbackend.precision import Policy


class Block(nnx.Module):
    """7x7 depthwise convolution, layer norm, two 1x1 convolutions with GELU between, layer scale, plus the input.

    The paper's stochastic depth is left out, because twins cannot share random numbers.
    """

    def __init__(self, features: int, hidden: int, *, policy: Policy) -> None:
        self.depthwise = Conv(features, features, 7, policy=policy, padding=3, groups=features)
        self.norm = LayerNorm(features, policy=policy)
        self.expand = Conv(features, hidden, 1, policy=policy)
        self.reduce = Conv(hidden, features, 1, policy=policy)
        self.layer_scale = LayerScale(features, policy=policy)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations of the same shape."""
        y = self.reduce(gelu(self.expand(self.norm(self.depthwise(x)))))
        return x + self.layer_scale(y)


class Downsample(nnx.Module):
    """Layer norm, 2x2 convolution with stride 2."""

    def __init__(self, inputs: int, outputs: int, *, policy: Policy) -> None:
        self.norm = LayerNorm(inputs, policy=policy)
        self.conv = Conv(inputs, outputs, 2, policy=policy, stride=2)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations of half the height and width, rounded down."""
        return self.conv(self.norm(x))


class ConvNeXt(nnx.Module):
    """Patches of 4x4 pixels, stages of blocks with downsampling between, global average pool, layer norm, dense.

    `depths` and `widths` give the blocks and channels of each stage. `hidden` gives the channels between the 1x1
    convolutions of each stage's blocks. By default they are four times its channels.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        classes: int,
        *,
        policy: Policy,
        depths: Sequence[int],
        widths: Sequence[int],
        hidden: Sequence[int] = (),
    ) -> None:
        self.stem = Conv(image[2], widths[0], 4, policy=policy, stride=4)
        self.stem_norm = LayerNorm(widths[0], policy=policy)
        self.blocks = nnx.List([])
        inputs = widths[0]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if width != inputs:
                self.blocks.append(Downsample(inputs, width, policy=policy))
            for _ in range(depth):
                self.blocks.append(Block(width, hidden[stage] if hidden else 4 * width, policy=policy))
            inputs = width
        self.average = GlobalAveragePool()
        self.norm = LayerNorm(inputs, policy=policy)
        self.dense = Dense(inputs, classes, policy=policy)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return logits [N, classes]."""
        x = self.stem_norm(self.stem(images))
        for block in self.blocks:
            x = block(x)
        return self.dense(self.norm(self.average(x)))
