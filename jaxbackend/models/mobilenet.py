"""MobileNetV2: Sandler et al. 2018, Inverted Residuals and Linear Bottlenecks."""

from collections.abc import Sequence

import jax
from flax import nnx

from jaxbackend.layers import Dense, GlobalAveragePool, relu6
from jaxbackend.models.parts import ConvNorm
from jaxbackend.precision import Policy


class InvertedResidual(nnx.Module):
    """1x1 convolution to `width` channels, 3x3 depthwise, 1x1 without activation.

    Batch norm follows each convolution, and ReLU6 the first two. If the input has `width` channels, there is no first
    convolution. The input is added if it has the output's shape.
    """

    def __init__(self, inputs: int, width: int, outputs: int, *, policy: Policy, stride: int = 1) -> None:
        self.expand = ConvNorm(inputs, width, 1, policy=policy) if width != inputs else None
        self.depthwise = ConvNorm(width, width, 3, policy=policy, stride=stride, groups=width)
        self.project = ConvNorm(width, outputs, 1, policy=policy)
        self.residual = stride == 1 and inputs == outputs

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations, height and width divided by the stride and rounded up."""
        y = x if self.expand is None else relu6(self.expand(x))
        y = self.project(relu6(self.depthwise(y)))
        return x + y if self.residual else y


class MobileNetV2(nnx.Module):
    """3x3 convolution with stride 2, stages of blocks, 1x1 convolution, global average pool, dense.

    `stages` gives the expansion, channels, blocks and first stride of each stage, in the order of the paper's table 2.
    `stem` and `head` are the channels of the first and the last convolution. `inner` gives the channels inside each
    block. By default they are the block's inputs times its expansion. The dropout of published implementations is left
    out, because twins cannot share random numbers.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        classes: int,
        *,
        policy: Policy,
        stem: int,
        stages: Sequence[tuple[int, int, int, int]],
        head: int,
        inner: Sequence[int] = (),
    ) -> None:
        self.stem = ConvNorm(image[2], stem, 3, policy=policy, stride=2)
        self.blocks = nnx.List([])
        inputs = stem
        for expansion, width, depth, stride in stages:
            for index in range(depth):
                first = 1 if index else stride
                middle = inner[len(self.blocks)] if inner else inputs * expansion
                self.blocks.append(InvertedResidual(inputs, middle, width, policy=policy, stride=first))
                inputs = width
        self.head = ConvNorm(inputs, head, 1, policy=policy)
        self.average = GlobalAveragePool()
        self.dense = Dense(head, classes, policy=policy)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return logits [N, classes]."""
        x = relu6(self.stem(images))
        for block in self.blocks:
            x = block(x)
        return self.dense(self.average(relu6(self.head(x))))
