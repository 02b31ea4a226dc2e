"""Layers, in torch's conventions, for activations [N, C, H, W] in the memory order of the layout knob.

In a compiled program, some operations are written out, so that TorchInductor can fuse them: stems, batch norm in
training, max-pool, and the gradients of ReLUs after batch norm and sums. Elsewhere torch's own kernels compute them.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from torchbackend import exchange, gradients, stems
from torchbackend.precision import Policy


class Conv(nn.Conv2d):
    """Square 2-D convolution with the same zero padding on every side, as in torch.nn.Conv2d.

    Flax's SAME would pad a stride-2 3x3 kernel by (0, 1) where torch's padding=1 pads by (1, 1). `groups` equal to
    `inputs` makes it depthwise. Compiled, images of few channels in NHWC are convolved as images of more channels.
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
        self.around = padding

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Convolve input [N, C, H, W]."""
        if self.groups > 1 or not torch.compiler.is_compiling():
            return super().forward(input)
        written = stems.rewrite(input, self.weight, self.stride[0], self.around)
        return super().forward(input) if written is None else functional.conv2d(*written, self.bias)


class ConvTranspose(nn.ConvTranspose2d):
    """Square transposed 2-D convolution, as in torch.nn.ConvTranspose2d without output padding.

    Input pixel (i, j) times kernel[y, x] is added to output pixel (stride * i + y - padding, stride * j + x - padding).
    This is the gradient of a convolution with the same kernel [height, width, outputs, inputs], stride and padding.
    Flax's default turns the kernel round, and pads the enlarged input.
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
    """Batch normalisation over all axes but the channels (Ioffe and Szegedy 2015), as in torch.nn.BatchNorm2d.

    It normalises by the biased batch variance and keeps the unbiased one. `momentum` is the weight of the new batch
    (Flax's 0.9 is torch's 0.1). Statistics are computed in the parameters' dtype, in one pass over memory if they are
    compiled, and over all devices if the policy is `synchronised`. TorchInductor's own statistics, by Welford's
    algorithm, take twice as long. While a block is `recomputing`, the running statistics stay, because its first pass
    has moved them.
    """

    recomputing = False

    def __init__(self, features: int, *, policy: Policy, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__(features, eps=epsilon, momentum=momentum, dtype=policy.parameter_dtype)
        self.synchronised = policy.synchronised

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise input [N, C, H, W]. In training, also move the running statistics."""
        if not (self.training and (self.synchronised or torch.compiler.is_compiling())):
            return self._recomputed(input) if self.recomputing else super().forward(input)
        wide = input.to(self.weight.dtype)
        mean, var = self._batch_statistics(wide)
        factor = self.weight * torch.rsqrt(var + self.eps)
        factor, shift = (_stored(vector) for vector in (factor, self.bias - mean * factor))
        return (wide * _of_channels(factor) + _of_channels(shift)).to(input.dtype)

    def _batch_statistics(self, wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, var = exchange.moments(wide, _moments, synchronised=self.synchronised)
        if not self.recomputing:
            count = wide.numel() // wide.shape[1] * (dist.get_world_size() if self.synchronised else 1)
            self.move_statistics(mean, var, count)
        return mean, var

    def move_statistics(self, mean: torch.Tensor, var: torch.Tensor, count: int) -> None:
        """Move the running statistics towards a batch's mean and biased variance, taken over `count` values."""
        for running, new in ((self.running_mean, mean), (self.running_var, var * _unbiased(count))):
            assert self.momentum is not None  # all three are set
            assert running is not None
            with torch.no_grad():
                running.lerp_(new, self.momentum)

    def _recomputed(self, input: torch.Tensor) -> torch.Tensor:
        # The same kernel on copies of the statistics: it saves the same number of tensors as in the first pass.
        assert self.running_mean is not None  # all three are set
        assert self.running_var is not None
        assert self.momentum is not None
        copies = self.running_mean.clone(), self.running_var.clone()
        return functional.batch_norm(input, *copies, self.weight, self.bias, True, self.momentum, self.eps)


class LayerNorm(nn.LayerNorm):
    """Normalisation over the channels of each pixel (Ba et al. 2016, and Liu et al. 2022 for CNNs).

    Statistics are computed in the parameters' dtype. Epsilon is ConvNeXt's 1e-6 (torch's default is 1e-5).
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
    """Largest value of each square window. Padding is minus infinity. A remainder at the far edge is left out.

    Flax's SAME would pad a stride-2 3x3 window by (0, 1) where torch's padding=1 pads by (1, 1).
    """

    def __init__(self, size: int, *, stride: int | None = None, padding: int = 0) -> None:
        super().__init__(size, stride, padding)
        self.window = size, stride or size, padding

    def forward(self, input: torch.Tensor) -> Any:
        """Pool input [N, C, H, W] over height and width."""
        if not torch.compiler.is_compiling():
            return super().forward(input)
        return gradients.max_pool(input, *self.window)


class GlobalAveragePool(nn.Module):
    """Mean over height and width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pool x [N, C, H, W] to [N, C]."""
        return x.mean((2, 3))


class Flatten(nn.Module):
    """Flatten in the order height, width, channel, in any memory order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Flatten x [N, C, H, W] to [N, H * W * C]."""
        return x.permute(0, 2, 3, 1).flatten(1)


class Concatenate(nn.Module):
    """Join the channels of two images, with zeros at the far edges of the second so that it fits the first.

    Pooling leaves out a remainder at the far edge, so an enlarged image lacks pixels there.
    """

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Join first [N, C1, H, W] and second [N, C2, h, w] to [N, C1 + C2, H, W]."""
        rows, columns = (first.shape[axis] - second.shape[axis] for axis in (2, 3))
        return torch.cat([first, functional.pad(second, (0, columns, 0, rows))], 1)


def relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)."""
    return functional.relu(x)


def relu_normalised(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0) of a batch norm's output."""
    return gradients.relu_normalised(x) if torch.compiler.is_compiling() else functional.relu(x)


def relu_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return max(x + y, 0)."""
    return gradients.relu(x + y) if torch.compiler.is_compiling() else functional.relu(x + y)


def relu6(x: torch.Tensor) -> torch.Tensor:
    """Return min(max(x, 0), 6). Its gradient is 0 at 0 and at 6."""
    return functional.relu6(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return x * Phi(x) with the exact Gaussian distribution function, torch's default (Flax's is the tanh form)."""
    return functional.gelu(x)


def _stored(x: torch.Tensor) -> torch.Tensor:
    return gradients.stored(x) if torch.compiler.is_compiling() else x


def _of_channels(x: torch.Tensor) -> torch.Tensor:
    """Return x [C] as [C, 1, 1]."""
    return x[:, None, None]


def _moments(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance over all axes but the channels, from sums that the compiler takes in one pass.

    E[x^2] - E[x]^2 cancels if the mean is many standard deviations from 0. So x is shifted by one value of the channel,
    and the difference cancels only if that value is as far from the mean (Chan, Golub and LeVeque 1983, Algorithms for
    Computing the Sample Variance). The value is the middle pixel's, because frames and marks are in corners. For
    several pixels, XLA makes one more kernel.
    """
    n, _, h, w = (side // 2 for side in wide.shape)
    shift = wide[n, :, h, w].detach()
    shifted = wide - _of_channels(shift)
    mean = shifted.mean((0, 2, 3))
    return shift + mean, shifted.square().mean((0, 2, 3)) - mean.square()


def _unbiased(count: int) -> float:
    return count / (count - 1)
