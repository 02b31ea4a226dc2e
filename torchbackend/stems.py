"""A convolution of few channels with a stride as one of more channels without (Ying et al. 2018)."""

import torch
from torch.nn import functional

AT_ONCE = 8
"""Channels that the tensor cores' kernels for convolutions read at once; of fewer, cuDNN's are the slowest it has."""


def space_to_depth(
    x: torch.Tensor, kernel: torch.Tensor, stride: int, padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and kernel of the same convolution with stride 1 and no padding, over blocks of pixels.

    Each stride x stride block of the padded images is a pixel, its pixels' channels are that one's, and the kernel has
    as many zeros more as it takes to be made of blocks (Ying et al. 2018, Image Classification at Supercomputer Scale).
    Channels are filled up with zeros to a multiple of what is read at once.
    """
    outputs, channels, size, _ = kernel.shape
    depth = stride * stride * channels
    x, kernel = x.movedim(1, -1), kernel.permute(2, 3, 1, 0)  # memory order is that of the axes
    reach = -(-size // stride)
    counts = [(side + 2 * padding - size) // stride + reach for side in x.shape[1:3]]
    below, beyond = (count * stride - side - padding for count, side in zip(counts, x.shape[1:3], strict=True))
    more = reach * stride - size
    x = functional.pad(x, (0, 0, padding, beyond, padding, below))
    kernel = functional.pad(kernel, (0, 0, 0, 0, 0, more, 0, more))
    x = x.reshape(len(x), counts[0], stride, counts[1], stride, channels)
    kernel = kernel.reshape(reach, stride, reach, stride, channels, outputs)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(len(x), *counts, depth)
    kernel = kernel.permute(0, 2, 1, 3, 4, 5).reshape(reach, reach, depth, outputs)
    full = -depth % AT_ONCE
    x, kernel = functional.pad(x, (0, full)), functional.pad(kernel, (0, 0, 0, full))
    return x.movedim(-1, 1), kernel.permute(3, 2, 0, 1)
