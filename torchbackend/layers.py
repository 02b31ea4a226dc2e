"""Layers, in torch's conventions, for activations [N, C, H, W] whose memory order is the layout knob's."""

import torch
from torch import nn
from torch.nn import functional

from torchbackend.precision import Policy


class Conv(nn.Conv2d):
    """Square 2-D convolution with the same zero padding on every side, as in torch.nn.Conv2d.

    Flax's SAME would pad a stride-2 3x3 kernel by (0, 1) where torch's padding=1 pads by (1, 1). `groups` equal to
    `inputs` makes it depthwise.
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
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(
            inputs,
            outputs,
            size,
            stride=stride,
            padding=padding,
            groups=groups,
            bias=bias,
            dtype=policy.parameter_dtype,  # the compute dtype comes from autocast
        )


class ConvTranspose(nn.ConvTranspose2d):
    """Square transposed 2-D convolution, as in torch.nn.ConvTranspose2d without output padding.

    Input pixel (i, j) times kernel[y, x] is added to output pixel (stride * i + y - padding, stride * j + x - padding):
    the gradient of a convolution with the same kernel [height, width, outputs, inputs], stride and padding. Flax's
    default turns the kernel round, and its padding is that of the enlarged input.
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
    ) -> None:
        super().__init__(
            inputs,
            outputs,
            size,
            stride=stride,
            padding=padding,
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


class LayerNorm(nn.LayerNorm):
    """Normalisation over the channels of each pixel (Ba et al. 2016; Liu et al. 2022 for CNNs).

    Statistics are computed in the parameters' dtype; epsilon is ConvNeXt's 1e-6 (torch's default is 1e-5).
    """

    def __init__(self, features: int, *, policy: Policy, epsilon: float = 1e-6) -> None:
        super().__init__(features, eps=epsilon, dtype=policy.parameter_dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise input [N, C, H, W] or [N, C] over C."""
        wide = input.movedim(1, -1).to(self.weight.dtype)
        y = functional.layer_norm(wide, self.normalized_shape, self.weight, self.bias, self.eps)
        return y.to(input.dtype).movedim(-1, 1)


class LayerScale(nn.Module):
    """Multiply each channel by a trained factor (Touvron et al. 2021)."""

    def __init__(self, features: int, *, policy: Policy) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features, dtype=policy.parameter_dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale x [N, C, H, W]."""
        return x * self.gamma.to(x.dtype)[:, None, None]


class MaxPool(nn.MaxPool2d):
    """Largest value of each square window, padded by minus infinity; a remainder at the far edge is left out.

    Flax's SAME would pad a stride-2 3x3 window by (0, 1) where torch's padding=1 pads by (1, 1).
    """

    def __init__(self, size: int, *, stride: int | None = None, padding: int = 0) -> None:
        super().__init__(size, stride, padding)


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


class Concatenate(nn.Module):
    """Put two images' channels one after the other, the second image padded by zeros at its far edges to fit the first.

    Pooling leaves out a remainder at the far edge, so that is where an image that was enlarged again lacks it.
    """

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Join first [N, C1, H, W] and second [N, C2, h, w] to [N, C1 + C2, H, W]."""
        rows, columns = (first.shape[axis] - second.shape[axis] for axis in (2, 3))
        return torch.cat([first, functional.pad(second, (0, columns, 0, rows))], 1)


def relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)."""
    return functional.relu(x)


def relu6(x: torch.Tensor) -> torch.Tensor:
    """Return min(max(x, 0), 6), whose gradient is 0 at 0 and at 6."""
    return functional.relu6(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return x * Phi(x) with the exact Gaussian distribution function, torch's default (Flax's is the tanh form)."""
    return functional.gelu(x)
