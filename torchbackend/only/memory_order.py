"""Orders of axes and of memory: torch keeps images as [N, C, H, W], and in memory as NCHW or NHWC."""

from collections.abc import Sequence

import torch

from compare.base.trace import Layout


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


def take(tensor: torch.Tensor, axis: int, order: Sequence[int]) -> torch.Tensor:
    """Return a tensor with the indices of one axis in this order."""
    return tensor.index_select(axis % tensor.ndim, torch.tensor(order, device=tensor.device))


def invert(order: Sequence[int]) -> list[int]:
    """Return the order that undoes an order."""
    places = [0] * len(order)
    for place, index in enumerate(order):
        places[index] = place
    return places


def bring_to_neutral(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return an activation in neutral order, as its layout tells. A layout of another size does not apply."""
    if len(layout.axes) == tensor.ndim:
        tensor = tensor.permute(layout.axes)
    return take(tensor, -1, layout.features) if len(layout.features) == tensor.shape[-1] else tensor


def bring_from_neutral(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Undo `bring_to_neutral`."""
    if len(layout.features) == tensor.shape[-1]:
        tensor = take(tensor, -1, invert(layout.features))
    return tensor.permute(invert(layout.axes)) if len(layout.axes) == tensor.ndim else tensor
