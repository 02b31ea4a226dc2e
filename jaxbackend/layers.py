"""Layers, in torch's conventions, for channels-last activations [N, H, W, C]."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxbackend import exchange, gradients, overlap, stems
from jaxbackend.precision import Policy


class Computed(NamedTuple):
    """A layer's result that was computed with another layer's. A layer that is called with it returns it.

    So it is recorded like any other result.
    """

    value: jax.Array


def _zeros(_: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return initial values from NumPy, because JAX would compile a program for each shape.

    The real values come from `compare.data.weights`.
    """
    return np.zeros(shape, dtype)


class Conv(nnx.Conv):
    """Square 2-D convolution with the same zero padding on every side, as in torch.nn.Conv2d.

    Flax's SAME would pad a stride-2 3x3 kernel by (0, 1) where torch's padding=1 pads by (1, 1). `groups` equal to
    `inputs` makes it depthwise. Images of few channels are convolved as images of more channels.
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
            (size, size),
            strides=stride,
            padding=_sides(padding),
            feature_group_count=groups,
            use_bias=bias,
            dtype=policy.compute_dtype,
            param_dtype=policy.parameter_dtype,
            promote_dtype=_promote,
            kernel_init=_zeros,
            bias_init=_zeros,
            rngs=nnx.Rngs(0),
        )
        self.stride, self.around = stride, padding

    def __call__(self, inputs: jax.Array | Computed, *_: Any) -> jax.Array:
        """Convolve inputs [N, H, W, C]."""
        if isinstance(inputs, Computed):
            return inputs.value
        written = None
        if self.feature_group_count == 1:
            written = stems.rewrite(inputs, self.kernel[...], self.stride, self.around)
        if written is None:
            return super().__call__(inputs).astype(self.dtype)
        x, kernel, bias = _promote((*written, None if self.bias is None else self.bias[...]), dtype=self.dtype)
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return (y if bias is None else y + bias).astype(self.dtype)


class ConvTranspose(nnx.ConvTranspose):
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
            (size, size),
            strides=stride,
            padding=_sides(size - 1 - padding),
            transpose_kernel=True,
            dtype=policy.compute_dtype,
            param_dtype=policy.parameter_dtype,
            promote_dtype=_promote,
            kernel_init=_zeros,
            bias_init=_zeros,
            rngs=nnx.Rngs(0),
        )
        self.stride, self.cut = stride, padding

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the transposed convolution of inputs [N, H, W, C]."""
        assert self.bias is not None  # Flax's default
        inputs, kernel, bias = _promote((inputs, self.kernel[...], self.bias[...]), dtype=self.dtype)
        return (gradients.conv_transpose(inputs, kernel, self.stride, self.cut) + bias).astype(self.dtype)


class Dense(nnx.Linear):
    """Affine map of the last axis."""

    def __init__(self, inputs: int, outputs: int, *, policy: Policy) -> None:
        super().__init__(
            inputs,
            outputs,
            dtype=policy.compute_dtype,
            param_dtype=policy.parameter_dtype,
            promote_dtype=_promote,
            kernel_init=_zeros,
            bias_init=_zeros,
            rngs=nnx.Rngs(0),
        )

    def __call__(self, inputs: jax.Array, *_: Any) -> jax.Array:
        """Map inputs [N, C]."""
        return super().__call__(inputs).astype(self.dtype)


class BatchNorm(nnx.Module):
    """Batch normalisation over all axes but the channels (Ioffe and Szegedy 2015), as in torch.nn.BatchNorm2d.

    It normalises by the biased batch variance and keeps the unbiased one. `momentum` is the weight of the new batch
    (Flax's 0.9 is torch's 0.1). Statistics are computed in the parameters' dtype, in one pass over memory, and over all
    devices if the policy is `synchronised`.
    """

    def __init__(self, features: int, *, policy: Policy, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        self.scale = nnx.Param(np.ones(features, policy.parameter_dtype))
        self.bias = nnx.Param(np.zeros(features, policy.parameter_dtype))
        self.mean = nnx.BatchStat(np.zeros(features, policy.parameter_dtype))
        self.var = nnx.BatchStat(np.ones(features, policy.parameter_dtype))
        self.momentum, self.epsilon, self.synchronised = momentum, epsilon, policy.synchronised
        self.use_running_average = False  # nnx.Module.train and eval set it
        self.is_folded = False  # `jaxbackend.only.folded_arrays` sets it

    def __call__(self, x: jax.Array | Computed) -> jax.Array:
        """Normalise x [N, H, W, C]. In training, also move the running statistics."""
        if isinstance(x, Computed):
            return x.value
        if self.is_folded:  # in x's dtype, so that XLA can fuse the shift into the convolution
            return x + self.bias[...].astype(x.dtype)
        wide = x.astype(self.scale[...].dtype)
        mean, var = (self.mean[...], self.var[...]) if self.use_running_average else self._batch_statistics(wide)
        factor = self.scale[...] * jax.lax.rsqrt(var + self.epsilon)
        offset = self.bias[...] - mean * factor
        return gradients.affine(wide, factor, offset, jointly=self._devices() > 1).astype(x.dtype)

    def _devices(self) -> int:
        """Return the number of devices over which the statistics of a batch are taken."""
        return jax.lax.axis_size(exchange.AXIS) if self.synchronised and not self.use_running_average else 1

    def _batch_statistics(self, wide: jax.Array) -> tuple[jax.Array, jax.Array]:
        count = wide.size // wide.shape[-1] * self._devices()
        local = partial(_moments, jointly=self._devices() > 1)
        mean, var = exchange.moments(wide, local, synchronised=self.synchronised)
        self.move_statistics(mean, var, count)
        return mean, var

    def move_statistics(self, mean: jax.Array, var: jax.Array, count: int) -> None:
        """Move the running statistics towards a batch's mean and biased variance, taken over `count` values."""
        old, new = 1 - self.momentum, self.momentum
        self.mean.set_value(jax.lax.stop_gradient(old * self.mean[...] + new * mean))
        self.var.set_value(jax.lax.stop_gradient(old * self.var[...] + new * (var * _unbiased(count))))


class LayerNorm(nnx.Module):
    """Normalisation over the channels of each pixel (Ba et al. 2016, and Liu et al. 2022 for CNNs).

    Statistics are computed in the parameters' dtype. Epsilon is ConvNeXt's 1e-6 (torch's default is 1e-5).
    """

    def __init__(self, features: int, *, policy: Policy, epsilon: float = 1e-6) -> None:
        self.scale = nnx.Param(np.ones(features, policy.parameter_dtype))
        self.bias = nnx.Param(np.zeros(features, policy.parameter_dtype))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise x [N, H, W, C] or [N, C] over C."""
        wide = x.astype(self.scale[...].dtype)
        mean = wide.mean(-1, keepdims=True)
        var = jnp.square(wide - mean).mean(-1, keepdims=True)
        y = (wide - mean) * jax.lax.rsqrt(var + self.epsilon)
        return (y * self.scale[...] + self.bias[...]).astype(x.dtype)


class LayerScale(nnx.Module):
    """Multiply each channel by a trained factor (Touvron et al. 2021)."""

    def __init__(self, features: int, *, policy: Policy) -> None:
        self.gamma = nnx.Param(np.ones(features, policy.parameter_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Scale x [N, H, W, C]."""
        gamma = self.gamma[...]
        wide = x.astype(gamma.dtype) * gamma.astype(x.dtype).astype(gamma.dtype)  # see _promote
        return wide.astype(x.dtype)


class MaxPool(nnx.Module):
    """Largest value of each square window. Padding is minus infinity. A remainder at the far edge is left out.

    Flax's SAME would pad a stride-2 3x3 window by (0, 1) where torch's padding=1 pads by (1, 1).
    """

    def __init__(self, size: int, *, stride: int | None = None, padding: int = 0) -> None:
        self.size, self.stride, self.padding = size, stride or size, padding

    def __call__(self, x: jax.Array) -> jax.Array:
        """Pool x [N, H, W, C] over height and width."""
        return gradients.max_pool(x, self.size, self.stride, self.padding)


class GlobalAveragePool(nnx.Module):
    """Mean over height and width."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Pool x [N, H, W, C] to [N, C]."""
        return x.mean((1, 2))


class Flatten(nnx.Module):
    """Flatten in the order height, width, channel, in any memory order."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Flatten x [N, H, W, C] to [N, H * W * C]."""
        return x.reshape(x.shape[0], -1)


class Concatenate(nnx.Module):
    """Join the channels of two images, with zeros at the far edges of the second so that it fits the first.

    Pooling leaves out a remainder at the far edge, so an enlarged image lacks pixels there.
    """

    def __call__(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """Join first [N, H, W, C1] and second [N, h, w, C2] to [N, H, W, C1 + C2]."""
        rows, columns = (first.shape[axis] - second.shape[axis] for axis in (1, 2))
        return jnp.concatenate([first, jnp.pad(second, ((0, 0), (0, rows), (0, columns), (0, 0)))], -1)


def relu(x: jax.Array) -> jax.Array:
    """Return max(x, 0)."""
    return nnx.relu(x)


def relu_normalised(x: jax.Array) -> jax.Array:
    """Return max(x, 0) of a batch norm's output."""
    return nnx.relu(x)


def relu_sum(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return max(x + y, 0)."""
    return gradients.relu(x + y)


def relu6(x: jax.Array) -> jax.Array:
    """Return min(max(x, 0), 6). Its gradient is 0 at 0 and at 6."""
    return jax.nn.relu6(x)


def gelu(x: jax.Array) -> jax.Array:
    """Return x * Phi(x) with the exact Gaussian distribution function, torch's default (Flax's is the tanh form)."""
    return nnx.gelu(x, approximate=False)


def _promote(arrays: Any, /, *, dtype: Any = None, **_: Any) -> Any:
    """Return inputs and kernel in the compute dtype, the bias as it is.

    XLA adds up bfloat16 gradients in bfloat16. The gradients of a bias or a layer scale are sums over every pixel, and
    a sum of 65,536 values loses half. A bias that is added as float32 has its gradient summed in float32, as in torch.
    """
    inputs, kernel, bias = arrays
    return inputs.astype(dtype), overlap.take_tickets(kernel.astype(dtype), inputs.shape[-1]), bias


def _sides(padding: int) -> Any:
    return [(padding, padding)] * 2


def _moments(wide: jax.Array, *, jointly: bool = False) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance over all axes but the channels, from sums that the compiler takes in one pass.

    E[x^2] - E[x]^2 cancels if the mean is many standard deviations from 0. So x is shifted by one value of the channel,
    and the difference cancels only if that value is as far from the mean (Chan, Golub and LeVeque 1983, Algorithms for
    Computing the Sample Variance). The value is the middle pixel's, because frames and marks are in corners. For
    several pixels, XLA makes one more kernel.
    """
    shift = jax.lax.stop_gradient(wide[tuple(side // 2 for side in wide.shape[:-1])])
    mean, square = (
        total / (wide.size // wide.shape[-1]) for total in gradients.sums_of_squares(wide - shift, jointly=jointly)
    )
    return shift + mean, square - jnp.square(mean)


def _unbiased(count: int) -> float:
    return count / (count - 1)
