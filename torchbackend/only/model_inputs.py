"""The inputs of a user's model: random ones, converted ones, and how its call takes them."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from compare.base.task import Input
from torchbackend.precision import Policy


def takes_by_name(model: nn.Module, inputs: Sequence[Input]) -> bool:
    """Tell whether the model's forward has an argument of each input's name."""
    named = inspect.signature(type(model).forward).parameters
    return all(each.name in named for each in inputs)


def make_arguments(
    inputs: Sequence[Input], values: Sequence[Any], *, by_name: bool, options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a model's call by place and by name."""
    if by_name:
        return (), {**options, **{each.name: value for each, value in zip(inputs, values, strict=True)}}
    return tuple(values), options


def convert(each: Input, values: torch.Tensor) -> torch.Tensor:
    """Return one input of a row with dtype and axes as torch has them."""
    if each.below is not None:
        return values.round().to(torch.int64)
    return (values.movedim(-1, 1) if each.is_channels_first else values).contiguous()


def make_inputs(inputs: Sequence[Input], batch_size: int) -> list[torch.Tensor]:
    """Return random inputs [N, ...] of a model, as torch has their axes."""
    random, made = torch.Generator().manual_seed(0), list[torch.Tensor]()
    for each in inputs:
        shape = (batch_size, *each.shape)
        if each.below is not None:
            made.append(torch.randint(each.below, shape, generator=random))
            continue
        if each.is_channels_first:
            shape = (shape[0], shape[-1], *shape[1:-1])
        made.append(torch.randn(shape, generator=random))
    return made


def widen_targets(labels: torch.Tensor, policy: Policy) -> torch.Tensor:
    """Return classes as int64, and other targets in the parameters' dtype, as torch's losses take them."""
    return labels.to(policy.parameter_dtype if labels.is_floating_point() else torch.int64)
