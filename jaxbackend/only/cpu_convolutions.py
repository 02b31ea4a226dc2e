"""Convolutions for which XLA has no fast code on a CPU, written so that it has.

If a kernel covers more pixels than its image has, XLA swaps both and reverses the kernel. If float64 images are
dilated, no library takes them. In both cases XLA makes plain loops, which take 5 to 50 times as long. Here the image
is padded and dilated first, and the convolution is a common one. The added terms are exact zeros.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

# With fewer outputs, XLA's plain loops over a dilated image are faster than the library over the larger image.
_LEAST_OUTPUTS = 64


def is_slow(equation: JaxprEqn) -> bool:
    """Tell whether an equation is a convolution that `convolve` makes faster on this platform."""
    if equation.primitive.name != "conv_general_dilated" or jax.default_backend() != "cpu":
        return False
    arrays: list[Any] = [atom.aval for atom in equation.invars]
    images, kernel = arrays
    numbers = equation.params["dimension_numbers"]
    pixels = math.prod(images.shape[axis] for axis in numbers.lhs_spec[2:])
    covered = math.prod(kernel.shape[axis] for axis in numbers.rhs_spec[2:])
    is_dilated = any(rate > 1 for rate in equation.params["lhs_dilation"])
    has_many_outputs = kernel.shape[numbers.rhs_spec[0]] >= _LEAST_OUTPUTS
    return 1 < pixels < covered or (is_dilated and images.dtype == jnp.float64 and has_many_outputs)


def convolve(equation: JaxprEqn, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return what the equation computes, up to the order of its sums."""
    params: dict[str, Any] = dict(equation.params)
    spatial = params["dimension_numbers"].lhs_spec[2:]
    borders = [(0, 0, 0)] * images.ndim
    for axis, (low, high), rate in zip(spatial, params["padding"], params["lhs_dilation"], strict=True):
        borders[axis] = low, high, rate - 1
    # Without the barrier, XLA would make the padding a part of the convolution again.
    enlarged = jax.lax.optimization_barrier(jax.lax.pad(images, jnp.zeros((), images.dtype), borders))
    params |= {"padding": ((0, 0),) * len(spatial), "lhs_dilation": (1,) * len(spatial)}
    return equation.primitive.bind(enlarged, kernel, **params)
