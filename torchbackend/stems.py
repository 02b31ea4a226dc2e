"""Convolutions of few channels, rewritten as equal convolutions of more channels."""

import torch
from torch.nn import functional

AT_ONCE = 8
"""Channels that tensor cores' kernels for convolutions read at once. For fewer, cuDNN's kernels are its slowest."""
WINDOW = 32
"""Channels of a pixel that holds its window, filled up with zeros. It costs time if over half of them are zeros."""


def rewrite(
    x: torch.Tensor, kernel: torch.Tensor, stride: int, padding: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return images and kernel of an equal, faster convolution with stride 1 and no padding.

    None where no such convolution is faster, as measured on an H200 (docs/speed-log.md).
    """
    _, channels, size, _ = kernel.shape
    if channels >= AT_ONCE or x.stride(1) > 1:  # in NCHW it would bring another memory order
        return None
    if stride > 1:
        return space_to_depth(x, kernel, stride, padding)
    return patches(x, kernel, padding) if WINDOW // 2 < size * size * channels <= WINDOW else None


def space_to_depth(
    x: torch.Tensor, kernel: torch.Tensor, stride: int, padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and kernel of an equal convolution with stride 1 and no padding, over blocks of pixels.

    Each stride x stride block of the padded images becomes one pixel with all their channels. Zeros fill up the kernel
    to whole blocks (Ying et al. 2018, Image Classification at Supercomputer Scale), and the channels to a multiple of
    `AT_ONCE`.
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


def patches(x: torch.Tensor, kernel: torch.Tensor, padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and kernel of a convolution with stride 1 as a product: each pixel's channels are its window.

    This is the lowering of convolutions to matrix products (Chellapilla, Puri and Simard 2006, High Performance
    Convolutional Neural Networks for Document Processing). Windows are filled up with zeros to `WINDOW` numbers.
    """
    size = kernel.shape[2]
    x = functional.pad(x.movedim(1, -1), (0, 0, padding, padding, padding, padding))  # memory order is that of the axes
    windows = x.unfold(1, size, 1).unfold(2, size, 1).permute(0, 1, 2, 4, 5, 3).flatten(3)
    full = WINDOW - windows.shape[-1]  # not torch.cat: TorchInductor would make one kernel for each part
    x, kernel = (functional.pad(array, (0, full)) for array in (windows, kernel.permute(0, 2, 3, 1).flatten(1)))
    return x.movedim(-1, 1), kernel[:, :, None, None]
