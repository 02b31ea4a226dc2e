"""Functions with gradients of their own, where automatic differentiation makes a slower program on a GPU.

Each returns a library function's value, and its gradient to rounding.
"""

from typing import Any

import torch
from torch.nn import functional


def relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0) of a sum x [N, C, H, W]. Its gradient is stored.

    Every earlier block reads the gradient of a residual sum. TorchInductor would mask and add up the gradients of all
    later blocks again in each of them.
    """
    return functional.relu(_with_stored_gradient(x))


def relu_normalised(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0) of a batch norm's output x [N, C, H, W]. Its gradient reads x and is stored unmasked.

    TorchInductor computes x again from batch norm's input, which batch norm's gradient reads anyway. So it need not
    read the result, too. A convolution's gradient is stored already. A max-pool's gradient would be stored as float32.
    """
    y: Any = _ReluNormalised.apply(x)
    return _with_stored_gradient(y)


class _ReluNormalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return max(x, 0)."""
        ctx.save_for_backward(x)
        return functional.relu(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the gradient where x was positive."""
        (x,) = ctx.saved_tensors
        return torch.where(x <= 0, 0, gradient)


def stored(x: torch.Tensor) -> torch.Tensor:
    """Return x [C], and let a compiled program write it to memory here and read it from there.

    TorchInductor stores a value that reads more than a few tensors (four, in torch 2.11). Any other value is computed
    again in every kernel that reads it. A view with fixed strides needs a stored value. For images it would be wrong,
    because their strides may still change.
    """
    kept: Any = _Stored.apply(x)
    return kept


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Return all of x."""
        return torch.as_strided(x, x.size(), x.stride())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the gradient. The gradient of a view would be copied into zeros."""
        return gradient


def _with_stored_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return x [N, C, H, W], and let a compiled program write its gradient to memory, in its own dtype.

    TorchInductor stores the input of a pooling in the memory order that it has chosen. A pooling over single pixels
    changes no value.
    """
    same: Any = _WithStoredGradient.apply(x)
    return same


class _WithStoredGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Return x."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the gradient."""
        return functional.avg_pool2d(gradient, 1)


def max_pool(x: torch.Tensor, size: int, stride: int, padding: int) -> torch.Tensor:
    """Pool by comparing strided slices. TorchInductor's own gradient of a max-pool takes three times as long.

    In float64 it is also wrong at some odd sizes (torch 2.11 on CUDA).
    """
    pooled: Any = _MaxPool.apply(x.movedim(1, -1), size, stride, padding)
    return pooled.movedim(-1, 1)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: int, stride: int, padding: int) -> torch.Tensor:
        """Return each window's maximum of x [N, H, W, C]. Tiles are stored in the order of their axes."""
        best, winner = _max_and_winner(x, size, stride, padding)
        ctx.save_for_backward(winner)
        ctx.window, ctx.sides = (size, stride, padding), x.shape[1:3]
        return best

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the gradient of the input: that of each window at the place of its maximum."""
        (winner,) = ctx.saved_tensors
        (size, stride, padding), (height, width) = ctx.window, ctx.sides
        # The input in tiles [lines, stride, columns, stride]. Windows t + first to t + last reach into tile t.
        lines, columns = (-(-side // stride) for side in (height, width))
        first, last = -((size - 1 - padding) // stride), (stride - 1 + padding) // stride
        beyond = (
            max(0, tiles + last - side) for tiles, side in zip((columns, lines), winner.shape[2:0:-1], strict=True)
        )
        sides = [0, 0, *(count for more in beyond for count in (-first, more))]
        bordered = [functional.pad(array, sides) for array in (winner, gradient)]
        wide = torch.promote_types(gradient.dtype, torch.float32)
        within = torch.arange(stride, dtype=torch.int32, device=gradient.device)
        total = torch.zeros((), dtype=wide, device=gradient.device)
        for down in range(first, last + 1):
            for right in range(first, last + 1):
                i, j = within[:, None] + padding - down * stride, within + padding - right * stride
                place = (i * (size + stride) + j)[:, None, :, None]
                top, left = down - first, right - first
                won, share = (_in_tiles(array[:, top : top + lines, left : left + columns]) for array in bordered)
                total = total + torch.where(won == place, share.to(wide), 0)
        whole = total.to(gradient.dtype).flatten(3, 4).flatten(1, 2)
        return whole[:, :height, :width], None, None, None


def _max_and_winner(x: torch.Tensor, size: int, stride: int, padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each window's maximum and its first place in the window, row by row. NaN counts as the largest.

    Places are counted as if rows had `stride` more places. So places beside a window have numbers of their own.
    """
    padded = functional.pad(x, (0, 0, *(padding,) * 4), value=-torch.inf)
    rows, columns = ((side + 2 * padding - size) // stride * stride + 1 for side in x.shape[1:3])
    places = [divmod(place, size) for place in range(size * size)]
    best, *others = [padded[:, i : i + rows : stride, j : j + columns : stride] for i, j in places]
    count = torch.int8 if size * (size + stride) <= 2**7 else torch.int32
    winner = torch.zeros_like(best, dtype=count)
    for place, seen in zip((i * (size + stride) + j for i, j in places[1:]), others, strict=True):
        better = (seen > best) | (seen.isnan() & ~best.isnan())
        best, winner = torch.where(better, seen, best), torch.where(better, place, winner)
    return best, winner


def _in_tiles(x: torch.Tensor) -> torch.Tensor:
    """Return x [N, H, W, C] as [N, H, 1, W, 1, C]."""
    return x[:, :, None, :, None]
