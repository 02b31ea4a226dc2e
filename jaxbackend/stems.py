"""Convolutions of few channels, rewritten as equal convolutions of more channels."""

import jax
import jax.numpy as jnp

AT_ONCE = 8
"""Channels that tensor cores' kernels for convolutions read at once. For fewer, cuDNN's kernels are its slowest."""
WINDOW = 32
"""Channels of a pixel that holds its window, filled up with zeros. It costs time if over half of them are zeros."""
_LARGE = 128
"""Height of images from which on windows save XLA more time than they cost."""


def rewrite(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> tuple[jax.Array, jax.Array] | None:
    """Return images and kernel of an equal, faster convolution with stride 1 and no padding.

    None where no such convolution is faster, as measured on an H200 (docs/speed-log.md).
    """
    size, _, channels, _ = kernel.shape
    if channels >= AT_ONCE:
        return None
    if stride > 1:
        return space_to_depth(x, kernel, stride, padding)
    large = x.shape[1] >= _LARGE
    return patches(x, kernel, padding) if large and WINDOW // 2 < size * size * channels <= WINDOW else None


def space_to_depth(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> tuple[jax.Array, jax.Array]:
    """Return images and kernel of an equal convolution with stride 1 and no padding, over blocks of pixels.

    Each stride x stride block of the padded images becomes one pixel with all their channels. Zeros fill up the kernel
    to whole blocks (Ying et al. 2018, Image Classification at Supercomputer Scale), and the channels to a multiple of
    `AT_ONCE`.
    """
    size, _, channels, outputs = kernel.shape
    depth = stride * stride * channels
    reach = -(-size // stride)
    counts = [(side + 2 * padding - size) // stride + reach for side in x.shape[1:3]]
    sides = [(padding, count * stride - side - padding, 0) for count, side in zip(counts, x.shape[1:3], strict=True)]
    more = (0, reach * stride - size, 0)
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *sides, (0, 0, 0)])
    kernel = jax.lax.pad(kernel, jnp.zeros((), kernel.dtype), [more, more, (0, 0, 0), (0, 0, 0)])
    x = x.reshape(len(x), counts[0], stride, counts[1], stride, channels)
    kernel = kernel.reshape(reach, stride, reach, stride, channels, outputs)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(len(x), *counts, depth)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(reach, reach, depth, outputs)
    full = (0, -depth % AT_ONCE)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), full)), jnp.pad(kernel, ((0, 0), (0, 0), full, (0, 0)))


def patches(x: jax.Array, kernel: jax.Array, padding: int) -> tuple[jax.Array, jax.Array]:
    """Return images and kernel of a convolution with stride 1 as a product: each pixel's channels are its window.

    This is the lowering of convolutions to matrix products (Chellapilla, Puri and Simard 2006, High Performance
    Convolutional Neural Networks for Document Processing). Windows are filled up with zeros to `WINDOW` numbers.
    """
    size = kernel.shape[0]
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = (side - size + 1 for side in x.shape[1:3])
    windows = [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    full = WINDOW - size * size * x.shape[-1]
    x = jnp.concatenate([*windows, jnp.zeros((len(x), height, width, full), x.dtype)], -1)
    return x, jnp.pad(kernel.reshape(-1, kernel.shape[-1]), ((0, full), (0, 0)))[None, None]
