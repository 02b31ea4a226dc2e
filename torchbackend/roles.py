"""What kind of layer a torch module is, its variables in neutral order, and what decides its arithmetic.

Both twins and users' models are read by these rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from compare.base.trace import Variable

_KERNEL = {"weight": "kernel", "bias": "bias"}
_NORM = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
# The first that fits counts: a transposed convolution is a convolution to torch.
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


def at(model: nn.Module, path: str) -> nn.Module:
    """Return the module of a layer's path.

    Raises:
        AttributeError: there is none.
    """
    return model if path == ROOT else model.get_submodule(path)


def role(module: nn.Module) -> str:
    """Return one of `compare.base.trace.ROLES`."""
    return _kind(module)[0]


def tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yield attribute, tensor and whether it is a parameter, of the module's own that can cross.

    Those are parameters, and buffers of floating point that torch saves with the model.
    """
    for attribute, tensor in module._parameters.items():
        if tensor is not None:
            yield attribute, tensor, True
    for attribute, tensor in module._buffers.items():
        if tensor is not None and tensor.is_floating_point() and attribute not in module._non_persistent_buffers_set:
            yield attribute, tensor, False


def variable(module: nn.Module, path: str, attribute: str, tensor: torch.Tensor, is_parameter: bool) -> Variable:
    """Return a parameter or buffer of a module at `path` as both frameworks describe it."""
    found = _kind(module)[1].get(attribute)
    shape = tuple(tensor.permute(axes(module, attribute, tensor)).shape)
    if found is None:
        longer = tuple(size for size in shape if size != 1)
        found, shape = ("gamma", longer) if len(longer) <= 1 else ("free", shape)
    return Variable(joined(path, attribute), found, shape, is_parameter)


def axes(module: nn.Module, attribute: str, tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the axes that bring a module's parameter or buffer into neutral order.

    Torch keeps convolution kernels OIHW and dense kernels [outputs, inputs]. Those of transposed convolutions are
    kept as the convolution's that they transpose, on both sides. A layer norm over whole images has scales [C, H, W].
    """
    kind, names = _kind(module)
    if names.get(attribute) == "kernel":
        return (*range(2, tensor.ndim), 1, 0)
    if kind == "layer-norm" and tensor.ndim == 3:
        return (1, 2, 0)
    return tuple(range(tensor.ndim))


def is_channels_first(module: nn.Module, shape: Sequence[int]) -> bool:
    """Tell whether a module's input or output of that shape is [N, C, H, W].

    Convolutions, batch norm and group norm take such images, dense layers and torch's own layer norm take [N, H, W, C].
    Of other modules the sizes tell, which are those of their variables along the channels.
    """
    if len(shape) != 4 or always_channels_last(module):
        return False
    if always_channels_first(module):
        return True
    channels = max((tensor.numel() for _, tensor, _ in tensors(module) if _is_line(tensor)), default=shape[1])
    return shape[1] == channels or shape[-1] != channels


def images(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the neutral shape of images [N, C, ...]: [N, ..., C]."""
    return (shape[0], *shape[2:], shape[1])


def always_channels_first(module: nn.Module) -> bool:
    """Tell whether the module takes images [N, C, H, W] only."""
    whole_images = isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 3
    return whole_images or isinstance(module, (_ConvNd, _BatchNorm, nn.GroupNorm))


def always_channels_last(module: nn.Module) -> bool:
    """Tell whether the module takes images [N, H, W, C] only."""
    plain_norm = isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward
    return isinstance(module, (nn.Linear, nn.Embedding)) or (plain_norm and not always_channels_first(module))


def settings(module: nn.Module) -> dict[str, Any]:
    """Return what decides the arithmetic of a module in its present mode, by the names of `compare.base.trace`."""
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


def written(module: nn.Module) -> dict[str, Any]:
    """Return the settings that the user wrote in another way than `settings` has them."""
    if isinstance(module, _ConvNd) and isinstance(module.padding, str):
        return {"padding": module.padding}
    return {}


def joined(path: str, attribute: str) -> str:
    """Return torch's state-dict name of an attribute of the module at `path`."""
    return f"{path}.{attribute}" if path else attribute


def _kind(module: nn.Module) -> tuple[str, Mapping[str, str]]:
    return next(((name, names) for kind, name, names in _KINDS if isinstance(module, kind)), ("parameters", {}))


def _is_line(tensor: torch.Tensor) -> bool:
    return sum(size != 1 for size in tensor.shape) == 1


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
    """Return pixels added before and after along each axis; torch's `same` adds an odd one after."""
    if isinstance(module.padding, str):
        if module.padding == "valid":
            return [[0, 0] for _ in module.kernel_size]
        totals = [(size - 1) * apart for size, apart in zip(module.kernel_size, module.dilation, strict=True)]
        return [[total // 2, total - total // 2] for total in totals]
    return [[size, size] for size in module.padding]
