"""The convolutions and products of a training step, from torch's trace of it."""

import copy
import math
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from compare.base.operation_counts import (
    CONVOLUTION,
    DATA_GRADIENT,
    FORWARD,
    PRODUCT,
    WEIGHT_GRADIENT,
    Axis,
    Operation,
    count_convolution,
    count_product,
)
from torchbackend.only.layer_scopes import watch_layers

_aten: Any = torch.ops.aten


def count(model: nn.Module, images: torch.Tensor, layers: Mapping[str, nn.Module]) -> list[Operation]:
    """Return the convolutions and products of a model's forward and backward pass, each with its layer.

    They are traced on a copy on the device `meta`, which computes nothing. `layers` are the model's modules by name.
    """
    tensors = [*model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {id(tensor): _to_meta(tensor) for tensor in tensors}
    twin = copy.deepcopy(model, memo)
    counter = _Counter()
    with ExitStack() as stack:
        watched = {name: memo[id(module)] for name, module in layers.items() if id(module) in memo}
        stack.enter_context(watch_layers(watched, counter.enter, counter.leave))
        stack.enter_context(counter)
        logits = twin(images.to("meta"))
        logits.sum().backward()
    return counter.operations


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


class _Counter(TorchDispatchMode):
    """Counts convolutions and products. A gradient finds its layer by the shapes of its forward pass, last first."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._layers: list[str] = []
        self._forward: defaultdict[Any, list[tuple[str, int]]] = defaultdict(list)

    def enter(self, name: str) -> None:
        self._layers.append(name)

    def leave(self, name: str) -> None:
        del name
        self._layers.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation of torch and run it."""
        del types
        result = func(*args, **(kwargs or {}))
        if func is _aten.convolution.default:
            self._convolution(args, result)
        elif func is _aten.convolution_backward.default:
            self._convolution_gradients(args)
        elif func in (_aten.mm.default, _aten.addmm.default, _aten.bmm.default):
            self._product(args, func is _aten.addmm.default)
        return result

    def _convolution(self, args: Any, result: torch.Tensor) -> None:
        images, kernel, _, stride, padding, dilation, transposed = args[:7]
        small, large = (images, result) if transposed else (result, images)
        axes = [
            Axis(
                size=large.shape[2 + axis],
                output=small.shape[2 + axis],
                kernel=kernel.shape[2 + axis],
                stride=stride[axis],
                before=padding[axis],
                kernel_dilation=dilation[axis],
            )
            for axis in range(images.dim() - 2)
        ]
        flops = count_convolution(images.shape[0], kernel.shape[1], kernel.shape[0], axes)
        layer = self._layers[-1] if self._layers else ""
        self._forward[_shapes(images, kernel)].append((layer, flops))
        self.operations.append(Operation(layer, CONVOLUTION, FORWARD, flops))

    def _convolution_gradients(self, args: Any) -> None:
        images, kernel, mask = args[1], args[2], args[10]
        layer, flops = self._forward[_shapes(images, kernel)].pop()
        for wanted, direction in zip(mask, (DATA_GRADIENT, WEIGHT_GRADIENT), strict=False):
            if wanted:
                self.operations.append(Operation(layer, CONVOLUTION, direction, flops))

    def _product(self, args: Any, adds: bool) -> None:
        left, right = args[1:3] if adds else args[:2]
        rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        flops = count_product(rows, inner, columns, math.prod(left.shape[:-2]))
        key = tuple(sorted((rows, inner, columns)))
        if self._layers:
            # Its gradients are two products of the same three sizes. The one over all rows is the weights'.
            self._forward[key] += [(self._layers[-1], rows)] * 2
            self.operations.append(Operation(self._layers[-1], PRODUCT, FORWARD, flops))
            return
        layer, images = self._forward[key].pop() if self._forward[key] else ("", rows)
        direction = WEIGHT_GRADIENT if inner == images and rows != images else DATA_GRADIENT
        self.operations.append(Operation(layer, PRODUCT, direction, flops))


def _shapes(images: torch.Tensor, kernel: torch.Tensor) -> Any:
    return tuple(images.shape), tuple(kernel.shape)
