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

from compare.interface import Array

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


def export(tensor: torch.Tensor, leaf: Leaf) -> Array:
    """Return a tensor that is shaped like a leaf in neutral layout, copied to the host."""
    return np.array(tensor.detach().permute(leaf.axes).cpu().numpy(), order="C")


def channels_last(activation: torch.Tensor) -> Array:
    """Return an activation [N, C, H, W] as [N, H, W, C] (others unchanged), copied to the host."""
    axes = (0, 2, 3, 1) if activation.ndim == 4 else tuple(range(activation.ndim))
    return np.array(activation.permute(axes).cpu().numpy(), order="C")


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
