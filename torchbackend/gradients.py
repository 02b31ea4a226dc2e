"""Functions with a gradient of their own, where automatic differentiation's makes a slower program on a GPU."""

from typing import Any

import torch
from torch.nn import functional


def relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0) of x [N, C, H, W], whose gradient is stored.

    For a sum. The gradient of a residual sum is read by every block before it: TorchInductor would mask and add up
    those of all later blocks again in each.
    """
    return functional.relu(_with_stored_gradient(x))


def relu_normalised(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0) of x [N, C, H, W], whose gradient asks what it was given, and is stored before it is masked.

    For what batch norm returns: TorchInductor computes that again from batch norm's input, which the gradient of batch
    norm reads anyway, and need not read what this returned beside it. What a convolution gives back is stored already;
    what a max-pool does TorchInductor would store as float32.
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
    """Return x [C], which a compiled program writes to memory here and reads from there.

    TorchInductor computes what reads a few tensors (four, in torch 2.11) again in every kernel that reads it, and
    stores what would read more. A view of given strides is of what has been stored. Of images it would be wrong:
    their strides may change after they were asked for.
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
        """Return the gradient; that of a view would be copied into zeros."""
        return gradient


def _with_stored_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return x [N, C, H, W], whose gradient a compiled program writes to memory, in its own dtype.

    What a pooling reads TorchInductor stores, in whichever memory order it has chosen; a pooling over single pixels
    changes nothing.
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
    """Pool by comparing strided slices; TorchInductor's own gradient of a max-pool takes three times as long.

    In float64 it is also wrong at some odd sizes (torch 2.11 on CUDA).
    """
    pooled: Any = _MaxPool.apply(x.movedim(1, -1), size, stride, padding)
    return pooled.movedim(-1, 1)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: int, stride: int, padding: int) -> torch.Tensor:
        """Return each window's maximum, of x [N, H, W, C]: tiles are stored in the order of their axes."""
        best, winner = _max_and_winner(x, size, stride, padding)
        ctx.save_for_backward(winner)
        ctx.window, ctx.sides = (size, stride, padding), x.shape[1:3]
        return best

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the gradient of the input: each window's own, at the place that won."""
        (winner,) = ctx.saved_tensors
        (size, stride, padding), (height, width) = ctx.window, ctx.sides
        # The input in tiles [lines, stride, columns, stride]: into tile t reach the windows from t + first to t + last.
        lines, columns = (-(-side // stride) for side in (height, width))
        first, last = -((size - 1 - padding) // stride), (stride - 1 + padding) // stride
        beyond = (
            max(0, tiles + last - side) for tiles, side in zip((columns, lines), winner.shape[2:0:-1], strict=True)
        )
        sides = [0, 0, *(count for more in beyond for count in (-first, more))]
        bordered = [functional.pad(each, sides) for each in (winner, gradient)]
        wide = torch.promote_types(gradient.dtype, torch.float32)
        within = torch.arange(stride, dtype=torch.int32, device=gradient.device)
        total = torch.zeros((), dtype=wide, device=gradient.device)
        for down in range(first, last + 1):
            for right in range(first, last + 1):
                i, j = within[:, None] + padding - down * stride, within + padding - right * stride
                place = (i * (size + stride) + j)[:, None, :, None]
                top, left = down - first, right - first
                won, share = (_in_tiles(each[:, top : top + lines, left : left + columns]) for each in bordered)
                total = total + torch.where(won == place, share.to(wide), 0)
        whole = total.to(gradient.dtype).flatten(3, 4).flatten(1, 2)
        return whole[:, :height, :width], None, None, None


def _max_and_winner(x: torch.Tensor, size: int, stride: int, padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each window's maximum and the place in it, row by row, that had it first (NaN before all).

    Places are counted as if rows had `stride` more, so that what is beside a window has a number that none in it has.
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
