"""One convolution, one dense layer: the CNN of the classic Keras tutorial."""

import jax
from flax import nnx

from jaxbackend.layers import Conv, Dense, Flatten, MaxPool, relu
from jaxbackend.precision import Policy


class SimpleCNN(nnx.Module):
    """3x3 convolution without padding, ReLU, 2x2 max-pool, flatten, dense."""

    def __init__(self, image: tuple[int, int, int], classes: int, *, policy: Policy, features: int) -> None:
        height, width, channels = image
        self.conv = Conv(channels, features, 3, policy=policy)
        self.pool = MaxPool(2)
        self.flatten = Flatten()
        self.dense = Dense((height - 2) // 2 * ((width - 2) // 2) * features, classes, policy=policy)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return logits [N, classes]."""
        x = self.pool(relu(self.conv(images)))
        return self.dense(self.flatten(x))
