"""Names and memory order: between torch's tensors and the neutral arrays of the shared interface.

Torch keeps convolution kernels OIHW and dense kernels [outputs, inputs], so both are transposed on the way. Those of
transposed convolutions are kept as the convolution's that they transpose, on both sides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from compare.interface import Arrays

_CONV, _DENSE = (2, 3, 1, 0), (1, 0)


@dataclass(frozen=True)
class Leaf:
    """One parameter or buffer: neutral name, torch's tensor, and the axes that bring it into neutral order."""

    name: str
    tensor: torch.Tensor
    axes: tuple[int, ...]
    is_parameter: bool


def leaves(model: nn.Module) -> list[Leaf]:
    """Return every parameter and buffer in the order in which the model declares them."""
    found: list[Leaf] = []
    for path, module in model.named_modules():
        for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
            for attribute, tensor in tensors.items():
                if tensor is not None and attribute != "num_batches_tracked":
                    name, axes = _neutral(module, attribute, tensor)
                    found.append(Leaf(f"{path}.{name}", tensor, axes, kind == "parameter"))
    return found


def signature(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return name to shape of every parameter and buffer, in the order in which the model declares them."""
    return {leaf.name: tuple(leaf.tensor.permute(leaf.axes).shape) for leaf in leaves(model)}


def export(tensors: Mapping[str, torch.Tensor], leaves: Sequence[Leaf]) -> dict[str, torch.Tensor]:
    """Return tensors that are shaped like leaves, by the leaves' names, in neutral layout."""
    return {leaf.name: tensors[leaf.name].detach().permute(leaf.axes) for leaf in leaves if leaf.name in tensors}


def fetched(arrays: Mapping[str, torch.Tensor]) -> Arrays:
    """Return arrays copied to the host, all copies under way at once."""
    copies = {name: array.detach().to("cpu", non_blocking=True) for name, array in arrays.items()}
    if any(array.is_cuda for array in arrays.values()):
        torch.cuda.synchronize()
    return {name: np.array(copy.numpy(), order="C") for name, copy in copies.items()}


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape as one [P, ...], in their own memory order (torch.stack would make images NCHW)."""
    first = tensors[0]
    whole = torch.empty_strided(
        (len(tensors), *first.shape), (first.numel(), *first.stride()), dtype=first.dtype, device=first.device
    )
    for index, tensor in enumerate(tensors):
        whole[index].copy_(tensor)
    return whole


def channels_last(activation: torch.Tensor) -> torch.Tensor:
    """Return an activation [N, C, H, W] as [N, H, W, C] (others unchanged)."""
    return activation.permute(0, 2, 3, 1) if activation.ndim == 4 else activation


def assign(leaves: Sequence[Leaf], arrays: Mapping[str, Any]) -> None:
    """Set parameters and buffers in place from neutral arrays, cast to their own dtype."""
    with torch.no_grad():
        for leaf in leaves:
            leaf.tensor.permute(leaf.axes).copy_(torch.from_numpy(np.asarray(arrays[leaf.name])))


def _neutral(module: nn.Module, attribute: str, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    same = tuple(range(tensor.ndim))
    if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
        return {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}[attribute], same
    if attribute == "weight":
        return "kernel", _CONV if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) else _DENSE
    return attribute, same
