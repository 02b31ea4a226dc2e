"""Functions with gradients of their own, where automatic differentiation makes a slower program on a GPU.

Each returns a library function's value, and its gradient to rounding.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def relu(x: jax.Array) -> jax.Array:
    """Return max(x, 0) of a sum x. Its gradient reads the result, as torch's does, and not x.

    The result is kept for the next layer anyway. The sum is not kept, so XLA would read both terms again. It would also
    compute the masked gradient in a pass of its own, apart from the sums that batch norm takes of it.
    """
    return _relu(x)


@jax.custom_vjp
def _relu(x: jax.Array) -> jax.Array:
    return nnx.relu(x)


def _relu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = nnx.relu(x)
    return y, y


def _relu_backward(y: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    # Not y > 0: XLA knows that this is x > 0, and would read x.
    return (jnp.where(y != 0, gradient, jnp.zeros((), gradient.dtype)),)


_relu.defvjp(_relu_forward, _relu_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def conv_transpose(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    """Return the gradient of a convolution's input [N, H, W, O]: x [N, h, w, I] is that of its output.

    The convolution's kernel is [height, width, O, I], and its zero padding is the same on every side. The gradients are
    a convolution and the gradient of a convolution's kernel. cuDNN has kernels for all three. XLA by itself makes the
    gradient of a transposed convolution's kernel a convolution with a window as large as the image.
    """
    return _transpose_convolution(x, kernel, stride, padding)


def _conv_transpose_forward(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> tuple[jax.Array, Any]:
    return _transpose_convolution(x, kernel, stride, padding), (x, kernel)


def _conv_transpose_backward(stride: int, padding: int, saved: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    of_kernel = jax.linear_transpose(lambda k: _convolve(gradient, k, stride, padding), kernel)(x)[0]
    return _convolve(gradient, kernel, stride, padding), of_kernel


conv_transpose.defvjp(_conv_transpose_forward, _conv_transpose_backward)


def _transpose_convolution(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    count, *sides, _ = x.shape
    *sizes, outputs, _ = kernel.shape
    height, width = (stride * (side - 1) + size - 2 * padding for side, size in zip(sides, sizes, strict=True))
    enlarged = jax.ShapeDtypeStruct((count, height, width, outputs), x.dtype)
    return jax.linear_transpose(lambda y: _convolve(y, kernel, stride, padding), enlarged)(x)[0]


def _convolve(y: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
        y, kernel, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def max_pool(x: jax.Array, size: int, stride: int, padding: int) -> jax.Array:
    """Pool by comparing strided slices. XLA's own gradient of a max-pool scatters and takes three times as long."""
    return _pool(x, size, stride, padding)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _pool(x: jax.Array, size: int, stride: int, padding: int) -> jax.Array:
    return _max_and_winner(x, size, stride, padding)[0]


def _max_and_winner(x: jax.Array, size: int, stride: int, padding: int) -> tuple[jax.Array, jax.Array]:
    """Return each window's maximum and its first place in the window, row by row. NaN counts as the largest.

    Places are counted as if rows had `stride` more places. So places beside a window have numbers of their own.
    """
    _, height, width, _ = x.shape
    lowest = jnp.array(-jnp.inf, x.dtype)
    padded = jax.lax.pad(x, lowest, [(0, 0, 0), (padding, padding, 0), (padding, padding, 0), (0, 0, 0)])
    rows, columns = ((side + 2 * padding - size) // stride * stride + 1 for side in (height, width))
    places = [divmod(place, size) for place in range(size * size)]
    best, *others = [padded[:, i : i + rows : stride, j : j + columns : stride] for i, j in places]
    count = jnp.int8 if size * (size + stride) <= 2**7 else jnp.int32
    winner = jnp.zeros(best.shape, count)
    for place, seen in zip((i * (size + stride) + j for i, j in places[1:]), others, strict=True):
        better = (seen > best) | (jnp.isnan(seen) & ~jnp.isnan(best))
        best, winner = jnp.where(better, seen, best), jnp.where(better, count(place), winner)
    return best, winner


def _max_pool_forward(x: jax.Array, size: int, stride: int, padding: int) -> tuple[jax.Array, Any]:
    best, winner = _max_and_winner(x, size, stride, padding)
    winner = jax.lax.optimization_barrier(winner)  # otherwise XLA keeps every comparison, each as large as the result
    return best, (winner, jnp.zeros((0, *x.shape[1:3])))


def _max_pool_backward(size: int, stride: int, padding: int, saved: Any, gradient: jax.Array) -> tuple[jax.Array]:
    """Return the gradient of the input: that of each window at the place of its maximum."""
    winner, (_, height, width) = saved[0], saved[1].shape
    # The input in tiles [lines, stride, columns, stride]. Windows t + first to t + last reach into tile t.
    lines, columns = (-(-side // stride) for side in (height, width))
    first, last = -((size - 1 - padding) // stride), (stride - 1 + padding) // stride
    beyond = (max(0, tiles + last - side) for tiles, side in zip((lines, columns), winner.shape[1:3], strict=True))
    sides = [(0, 0, 0), *((-first, more, 0) for more in beyond), (0, 0, 0)]
    bordered = [jax.lax.pad(array, jnp.zeros((), array.dtype), sides) for array in (winner, gradient)]
    if first < last:  # otherwise XLA tests for each channel alone whether each window exists
        bordered = jax.lax.optimization_barrier(bordered)
    wide, within = jnp.promote_types(gradient.dtype, jnp.float32), np.arange(stride, dtype=np.int32)
    total = jnp.zeros((), wide)
    for down in range(first, last + 1):
        for right in range(first, last + 1):
            i, j = within[:, None] + padding - down * stride, within + padding - right * stride
            place = (i * (size + stride) + j)[:, None, :, None]
            top, left = down - first, right - first
            won, share = (_in_tiles(array[:, top : top + lines, left : left + columns]) for array in bordered)
            total += jnp.where(won == place, share.astype(wide), 0)
    whole = total.astype(gradient.dtype).reshape(len(gradient), lines * stride, columns * stride, -1)
    return (whole[:, :height, :width],)


_pool.defvjp(_max_pool_forward, _max_pool_backward)


def _in_tiles(x: jax.Array) -> jax.Array:
    """Return x [N, H, W, C] as [N, H, 1, W, 1, C]."""
    return x[:, :, None, :, None]


def sums_of_squares(x: jax.Array, *, jointly: bool) -> tuple[jax.Array, jax.Array]:
    """Return the sums [C] of x [N, ..., C] and of its squares.

    `jointly`, one reduction takes both and has no gradient: if devices exchange moments, the gradient is written out
    (`jaxbackend.exchange.moments`).
    """
    square = jnp.square(x)
    return _add_jointly(x, square) if jointly else (_sum(x), _sum(square))


def affine(x: jax.Array, factor: jax.Array, offset: jax.Array, *, jointly: bool) -> jax.Array:
    """Return x [N, ..., C] times factor [C] plus offset [C]. `jointly`, one reduction takes both gradients."""
    return _affine(x, factor, offset) if jointly else x * factor + offset


@jax.custom_vjp
def _affine(x: jax.Array, factor: jax.Array, offset: jax.Array) -> jax.Array:
    return x * factor + offset


def _affine_forward(x: jax.Array, factor: jax.Array, offset: jax.Array) -> tuple[jax.Array, Any]:
    return _affine(x, factor, offset), (x, factor)


def _affine_backward(saved: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, factor = saved
    return gradient * factor, *_add_jointly(gradient * x, gradient)


_affine.defvjp(_affine_forward, _affine_backward)


def _sum(x: jax.Array) -> jax.Array:
    return x.sum(range(x.ndim - 1))


def _add_jointly(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sums of x and y, both [N, ..., C], over all axes but the last, by one reduction."""
    zero = jnp.zeros((), x.dtype)
    return jax.lax.reduce((x, y), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), tuple(range(x.ndim - 1)))
