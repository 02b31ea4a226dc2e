"""Functions with a gradient of their own, where automatic differentiation's makes a slower program on a GPU."""

from typing import Any

import torch
from torch.nn import functional


def max_pool(x: torch.Tensor, size: int, stride: int, padding: int) -> torch.Tensor:
    """Pool by comparing strided slices; TorchInductor's own gradient of a max-pool takes three times as long.

    In float64 it is also wrong at some odd sizes (torch 2.11 on CUDA, benchmarks/compiled_gradient.py).
    """
    pooled: Any = _MaxPool.apply(x, size, stride, padding)
    return pooled


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: int, stride: int, padding: int) -> torch.Tensor:
        """Return each window's maximum."""
        best, winner = _max_and_winner(x, size, stride, padding)
        ctx.save_for_backward(winner)
        ctx.window, ctx.sides = (size, stride, padding), x.shape[2:]
        return best

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the gradient of the input: each window's own, at the place that won."""
        (winner,) = ctx.saved_tensors
        (size, stride, padding), (height, width) = ctx.window, ctx.sides
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        # The padded input in tiles [lines, stride, columns, stride]: a window reaches into as many as `overlaps`.
        lines, columns = (-(-(side + 2 * padding) // stride) for side in (height, width))
        overlaps, within = -(-size // stride), torch.arange(stride, device=gradient.device)
        total = torch.zeros((), dtype=wide.dtype, device=gradient.device)
        for down in range(overlaps):
            for right in range(overlaps):
                i, j = within[:, None] + down * stride, within + right * stride
                place = torch.where(j < size, i * size + j, -1)[:, None, :]
                sides = right, columns - winner.shape[3] - right, down, lines - winner.shape[2] - down
                won, share = (_in_tiles(functional.pad(each, sides)) for each in (winner, wide))
                total = total + torch.where(won == place, share, 0)
        whole = total.to(gradient.dtype).flatten(4, 5).flatten(2, 3)
        return whole[:, :, padding : padding + height, padding : padding + width], None, None, None


def _max_and_winner(x: torch.Tensor, size: int, stride: int, padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each window's maximum and the place in it, row by row, that had it first (NaN before all)."""
    padded = functional.pad(x, (padding,) * 4, value=-torch.inf)
    rows, columns = ((side + 2 * padding - size) // stride * stride + 1 for side in x.shape[2:])
    places = [divmod(place, size) for place in range(size * size)]
    best, *others = [padded[:, :, i : i + rows : stride, j : j + columns : stride] for i, j in places]
    winner = torch.zeros_like(best, dtype=torch.int8)
    for place, seen in enumerate(others, start=1):
        better = (seen > best) | (seen.isnan() & ~best.isnan())
        best, winner = torch.where(better, seen, best), torch.where(better, place, winner)
    return best, winner


def _in_tiles(x: torch.Tensor) -> torch.Tensor:
    """Return x [N, C, H, W] as [N, C, H, 1, W, 1]."""
    return x[:, :, :, None, :, None]
