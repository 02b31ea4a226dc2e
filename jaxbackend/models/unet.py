"""U-Net: Ronneberger et al. 2015, with batch norm, and padded convolutions so that every pixel has logits."""

from collections.abc import Sequence

import jax
from flax import nnx

from jaxbackend.layers import Concatenate, Conv, ConvTranspose, MaxPool, relu_normalised
from jaxbackend.models.parts import ConvNorm
from jaxbackend.precision import Policy


class DoubleConv(nnx.Module):
    """Two 3x3 convolutions that keep the image size, each followed by batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, *, policy: Policy) -> None:
        self.first = ConvNorm(inputs, outputs, 3, policy=policy)
        self.last = ConvNorm(outputs, outputs, 3, policy=policy)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations of the same height and width."""
        return relu_normalised(self.last(relu_normalised(self.first(x))))


class Up(nnx.Module):
    """2x2 transposed convolution with stride 2 to half the channels, joined to the skip, and two convolutions."""

    def __init__(self, inputs: int, outputs: int, *, policy: Policy) -> None:
        self.enlarge = ConvTranspose(inputs, outputs, 2, policy=policy, stride=2)
        self.join = Concatenate()
        self.convs = DoubleConv(2 * outputs, outputs, policy=policy)

    def __call__(self, x: jax.Array, skip: jax.Array) -> jax.Array:
        """Return activations of the skip's shape."""
        return self.convs(self.join(skip, self.enlarge(x)))


class UNet(nnx.Module):
    """Down a path of halved images, up again to every skip on the way, 1x1 convolution.

    `widths` gives the channels of each size, from the images' own down.
    """

    def __init__(self, image: tuple[int, int, int], classes: int, *, policy: Policy, widths: Sequence[int]) -> None:
        self.down = nnx.List([])
        inputs = image[2]
        for width in widths:
            self.down.append(DoubleConv(inputs, width, policy=policy))
            inputs = width
        self.pool = MaxPool(2)
        self.up = nnx.List([])
        for width in widths[-2::-1]:
            self.up.append(Up(inputs, width, policy=policy))
            inputs = width
        self.pointwise = Conv(inputs, classes, 1, policy=policy)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return logits [N, H, W, classes]."""
        x, skips = images, []
        for index, convs in enumerate(self.down):
            if index:
                skips.append(x)
                x = self.pool(x)
            x = convs(x)
        for up in self.up:
            x = up(x, skips.pop())
        return self.pointwise(x)
