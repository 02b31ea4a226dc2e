"""Parts of several model families."""

import jax
from flax import nnx

from jaxbackend.layers import BatchNorm, Conv
from jaxbackend.precision import Policy


class ConvNorm(nnx.Module):
    """Convolution that keeps the image size up to its stride, batch norm."""

    def __init__(
        self, inputs: int, outputs: int, size: int, *, policy: Policy, stride: int = 1, groups: int = 1
    ) -> None:
        self.conv = Conv(
            inputs, outputs, size, policy=policy, stride=stride, padding=size // 2, groups=groups, bias=False
        )
        self.norm = BatchNorm(outputs, policy=policy)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations, height and width divided by the stride and rounded up."""
        return self.norm(self.conv(x))
