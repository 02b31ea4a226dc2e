"""Layers, in torch's conventions, for activations [N, C, H, W] whose memory order is the layout knob's."""

import torch
from torch import nn
from torch.nn import functional

from torchbackend.precision import Policy


class Conv(nn.Conv2d):
    """Square 2-D convolution with the same zero padding on every side, as in torch.nn.Conv2d.

    Flax's SAME would pad a stride-2 3x3 kernel by (0, 1) where torch's padding=1 pads by (1, 1).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        *,
        policy: Policy,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(
            inputs,
            outputs,
            size,
            stride=stride,
            padding=padding,
            bias=bias,
            dtype=policy.parameter_dtype,  # the compute dtype comes from autocast
        )


class Dense(nn.Linear):
    """Affine map of the last axis."""

    def __init__(self, inputs: int, outputs: int, *, policy: Policy) -> None:
        super().__init__(
            inputs,
            outputs,
            dtype=policy.parameter_dtype,  # the compute dtype comes from autocast
        )


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation over all axes but the channels (Ioffe and Szegedy 2015).

    Normalises by the biased batch variance and keeps the unbiased one; `momentum` is the weight of the new batch
    (Flax's 0.9 is torch's 0.1). Statistics are computed in the parameters' dtype.
    """

    def __init__(self, features: int, *, policy: Policy, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__(features, eps=epsilon, momentum=momentum, dtype=policy.parameter_dtype)


class MaxPool(nn.MaxPool2d):
    """Largest value of each non-overlapping square window; a remainder at the far edge is left out."""

    def __init__(self, size: int) -> None:
        super().__init__(size)


class GlobalAveragePool(nn.Module):
    """Mean over height and width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pool x [N, C, H, W] to [N, C]."""
        return x.mean((2, 3))


class Flatten(nn.Module):
    """Flatten in height, width, channel order, whichever order memory has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Flatten x [N, C, H, W] to [N, H * W * C]."""
        return x.permute(0, 2, 3, 1).flatten(1)


def relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)."""
    return functional.relu(x)
