"""One convolution, one dense layer: the CNN of the classic Keras tutorial."""

import jax
from flax import nnx

from jaxbackend.layers import Conv, Dense, Flatten, MaxPool, relu
from jaxbackend.precision import Policy


class SimpleCNN(nnx.Module):
    """3x3 convolution that keeps the image size, ReLU, 2x2 max-pool, flatten, dense.

    The tutorial does not pad. Padding keeps the edge pixels of 8x8 digits.
    """

    def __init__(self, image: tuple[int, int, int], classes: int, *, policy: Policy, features: int) -> None:
        height, width, channels = image
        self.conv = Conv(channels, features, 3, policy=policy, padding=1)
        self.pool = MaxPool(2)
        self.flatten = Flatten()
        self.dense = Dense((height // 2) * (width // 2) * features, classes, policy=policy)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return logits [N, classes]."""
        x = self.pool(relu(self.conv(images)))
        return self.dense(self.flatten(x))
