"""What kind of layer a torch module is, the roles of its variables, and the settings of its arithmetic.

These rules read both twins and users' models.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

_KERNEL = {"weight": "kernel", "bias": "bias"}
_NORM = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
# The first match counts, because torch derives transposed convolutions from convolutions.
_KINDS: tuple[tuple[type[nn.Module], str, Mapping[str, str]], ...] = (
    (_ConvTransposeNd, "transposed-convolution", _KERNEL),
    (_ConvNd, "convolution", _KERNEL),
    (nn.Linear, "dense", _KERNEL),
    (_BatchNorm, "batch-norm", _NORM),
    (nn.LayerNorm, "layer-norm", _NORM),
    (nn.GroupNorm, "group-norm", _NORM),
    (nn.Embedding, "embedding", {"weight": "embedding"}),
)

ROOT = "(model)"
"""Path of the model itself, where it holds parameters of its own."""


def role(module: nn.Module) -> str:
    """Return one of `compare.base.trace.ROLES`."""
    return _find_kind(module)[0]


def variable(
    module: nn.Module, kind: str, attribute: str, shape: Sequence[int]
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return role and neutral shape of a variable in a layer of this kind, and the order of its axes when neutral.

    Torch keeps convolution kernels as OIHW and dense kernels as [outputs, inputs]. The kernel of a transposed
    convolution is the kernel of the convolution that it transposes, on both sides. A layer norm over whole images has
    scales [C, H, W].
    """
    found, axes = _find_kind(module)[1].get(attribute), tuple(range(len(shape)))
    if found == "kernel":
        axes = (*axes[2:], 1, 0)
    elif kind == "layer-norm" and len(shape) == 3:
        axes = (1, 2, 0)
    neutral = tuple(shape[axis] for axis in axes)
    if found is not None:
        return found, neutral, axes
    longer = tuple(size for size in neutral if size != 1)
    return ("gamma", longer, axes) if len(longer) <= 1 else ("free", neutral, axes)


def settings(module: nn.Module) -> dict[str, Any]:
    """Return the settings of a module's arithmetic in its present mode, by the names of `compare.base.trace`."""
    match module:
        case _ConvNd():
            return _convolution(module)
        case _BatchNorm():
            keeps = module.track_running_stats and module.running_mean is not None
            found: dict[str, Any] = {"epsilon": module.eps}
            if keeps:
                found |= {"momentum": module.momentum, "running_variance": "unbiased"}
            statistics = "batch" if module.training or not keeps else "running"
            return found | {"statistics": statistics, "fast_variance": False}
        case nn.LayerNorm():
            return {"epsilon": module.eps, "fast_variance": False}
        case nn.GroupNorm():
            return {"groups": module.num_groups, "epsilon": module.eps, "fast_variance": False}
        case _:
            return {}


def read_as_written(module: nn.Module) -> dict[str, Any]:
    """Return the settings that the user has written in another way than `settings` returns them."""
    if isinstance(module, _ConvNd) and isinstance(module.padding, str):
        return {"padding": module.padding}
    return {}


def _find_kind(module: nn.Module) -> tuple[str, Mapping[str, str]]:
    return next(((name, names) for kind, name, names in _KINDS if isinstance(module, kind)), ("parameters", {}))


def _convolution(module: _ConvNd) -> dict[str, Any]:
    found = {
        "kernel": list(module.kernel_size),
        "stride": list(module.stride),
        "padding": _padding(module),
        "dilation": list(module.dilation),
        "groups": module.groups,
        "padding_mode": module.padding_mode,
    }
    if isinstance(module, _ConvTransposeNd):
        found["output_padding"] = list(module.output_padding)
    return found


def _padding(module: _ConvNd) -> list[list[int]]:
    """Return the padding before and after each axis. Torch's `same` adds an odd pixel after."""
    if isinstance(module.padding, str):
        if module.padding == "valid":
            return [[0, 0] for _ in module.kernel_size]
        totals = [(size - 1) * apart for size, apart in zip(module.kernel_size, module.dilation, strict=True)]
        return [[total // 2, total - total // 2] for total in totals]
    return [[size, size] for size in module.padding]
