"""Convolutions and dense layers under torch's weight norm, which computes a kernel from a direction and a length.

Their variables are the direction, as `kernel`, and the length, as `scale`. Flax has the same two.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.weight_norm import WeightNorm

from compare.base.names import join_path
from compare.base.trace import Variable


def find_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return length and direction by attribute path of a layer under weight norm, empty for other modules.

    Other parametrisations, or a norm over other axes than those of an output, return nothing either.
    """
    is_kept = isinstance(module, nn.Linear) or (
        isinstance(module, _ConvNd) and not isinstance(module, _ConvTransposeNd)
    )
    if not is_kept:
        return {}
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and hook.name == "weight" and hook.dim == 0:
            return {name: getattr(module, name) for name in ("weight_g", "weight_v")}
    if not parametrize.is_parametrized(module):
        return {}
    every: Any = module.parametrizations
    parts = every["weight"] if list(every) == ["weight"] else ()
    if len(parts) != 1 or not isinstance(parts[0], parametrizations._WeightNorm) or parts[0].dim != 0:
        return {}
    return {f"parametrizations.weight.{name}": getattr(parts, name) for name in ("original0", "original1")}


def list_variables(module: nn.Module, path: str) -> Iterator[tuple[Variable, torch.Tensor]]:
    """Yield the length and the direction of a layer under weight norm, and their tensors."""
    for role, (attribute, tensor) in zip(("scale", "kernel"), find_tensors(module).items(), strict=False):
        axes = (*range(2, tensor.ndim), 1, 0) if role == "kernel" else tuple(range(tensor.ndim))
        shape = tuple(tensor.shape[axis] for axis in axes) if role == "kernel" else (tensor.shape[0],)
        yield Variable(join_path((path, attribute)), role, shape, True, axes=axes), tensor


def is_part(path: str) -> bool:
    """Tell whether a module at this path belongs to a parametrisation."""
    return "parametrizations" in path.split(".")
