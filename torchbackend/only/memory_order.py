"""Orders of axes and of memory: torch keeps images as [N, C, H, W], and in memory as NCHW or NHWC."""

from collections.abc import Sequence

import torch


def stack_batches(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return P tensors of one shape as one tensor [P, ...] and keep their memory order.

    torch.stack would make images NCHW.
    """
    first = tensors[0]
    whole = torch.empty_strided(
        (len(tensors), *first.shape), (first.numel(), *first.stride()), dtype=first.dtype, device=first.device
    )
    for index, tensor in enumerate(tensors):
        whole[index].copy_(tensor)
    return whole


def select_batch(batches: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Return one of the batches [P, ...] and keep its memory order.

    `position` [1] lies on the device, so the host does not wait for it.
    """
    if batches.ndim != 5 or batches.is_contiguous():
        return batches.index_select(0, position).squeeze(0)
    return batches.movedim(2, -1).index_select(0, position).squeeze(0).movedim(-1, 1)


def to_channels_last(activation: torch.Tensor) -> torch.Tensor:
    """Return an activation [N, C, H, W] as [N, H, W, C] and any other activation unchanged."""
    return activation.permute(0, 2, 3, 1) if activation.ndim == 4 else activation


def to_channels_last_rows(tensor: torch.Tensor, channels: int, *, axis: int) -> torch.Tensor:
    """Return a tensor with its flattened axis [CHW] brought into the order [HWC]."""
    axis %= tensor.ndim
    return tensor.unflatten(axis, (channels, -1)).transpose(axis, axis + 1).flatten(axis, axis + 1)


def to_channels_first_rows(tensor: torch.Tensor, channels: int, *, axis: int) -> torch.Tensor:
    """Undo `to_channels_last_rows`."""
    axis %= tensor.ndim
    return tensor.unflatten(axis, (-1, channels)).transpose(axis, axis + 1).flatten(axis, axis + 1)
