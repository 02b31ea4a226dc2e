"""The variables of a torch module, its place in a model, and which axis of its images holds the channels."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from torchbackend.roles import ROOT


def find_module(model: nn.Module, path: str) -> nn.Module:
    """Return the module at a layer's path.

    Raises:
        AttributeError: there is none.
    """
    return model if path == ROOT else model.get_submodule(path)


def find_torch_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of torch that a module is of or that its class derives from."""
    return next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn"))


def has_own_forward(module: nn.Module) -> bool:
    """Tell whether a user's class of one of torch's kinds has a forward of its own."""
    return type(module).forward is not find_torch_class(module).forward


def tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yield attribute, tensor and whether it is a parameter, for each of the module's own variables that cross.

    Parameters cross, and so do floating-point buffers that torch saves with the model.
    """
    for attribute, tensor in module._parameters.items():
        if tensor is not None:
            yield attribute, tensor, True
    for attribute, tensor in module._buffers.items():
        if tensor is not None and tensor.is_floating_point() and attribute not in module._non_persistent_buffers_set:
            yield attribute, tensor, False


def is_channels_first(module: nn.Module, shape: Sequence[int]) -> bool:
    """Tell whether a module's input or output of that shape is [N, C, H, W], or with one or three axes after C.

    Convolutions, batch norm and group norm take such images. Dense layers and torch's own layer norm take
    [N, H, W, C]. The variables of any other module have one value a channel, so their size tells.
    """
    if len(shape) not in (3, 4, 5) or is_always_channels_last(module):
        return False
    if is_always_channels_first(module):
        return True
    if len(shape) == 3:  # rows [N, L, C], as in attention
        return False
    channels = max((tensor.numel() for _, tensor, _ in tensors(module) if _has_one_axis(tensor)), default=shape[1])
    return shape[1] == channels or shape[-1] != channels


def neutral_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the neutral shape [N, ..., C] of images [N, C, ...]."""
    return (shape[0], *shape[2:], shape[1])


def is_always_channels_first(module: nn.Module) -> bool:
    """Tell whether the module takes images [N, C, H, W] only."""
    whole_images = isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 3
    return whole_images or isinstance(module, (_ConvNd, _BatchNorm, nn.GroupNorm))


def is_always_channels_last(module: nn.Module) -> bool:
    """Tell whether the module takes images [N, H, W, C] only."""
    plain_norm = isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward
    return isinstance(module, (nn.Linear, nn.Embedding)) or (plain_norm and not is_always_channels_first(module))


def has_exchanges(model: nn.Module) -> bool:
    """Tell whether devices exchange the moments of a batch norm in each pass of a twin."""
    return any(getattr(layer, "synchronised", False) for layer in model.modules())


def _has_one_axis(tensor: torch.Tensor) -> bool:
    return sum(size != 1 for size in tensor.shape) == 1
