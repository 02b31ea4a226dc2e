"""Layers that are functions of torch with a module's parameters, and no modules: `F.conv2d(x, self.weight)`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from torchbackend.only.recognition import FORMS


def find_kernel(model: nn.Module, path: str) -> torch.Tensor | None:
    """Return the parameter that an operation's path names, or None for the path of a module."""
    place, _, attribute = path.rpartition(".")
    if not attribute:
        return None
    try:
        found = getattr(model.get_submodule(place), attribute, None)
    except AttributeError:
        return None
    return found if isinstance(found, torch.Tensor) else None


class OperationRecorder(TorchFunctionMode):
    """Calls `keep(path, input, result)` for every function with one of these parameters, given by its tensor's id."""

    def __init__(self, operations: Mapping[int, str], keep: Callable[[str, torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__()
        self._operations, self._keep = operations, keep

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch and keep its input and result."""
        del types
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in FORMS:
            values = (*args, *(kwargs or {}).values())
            path = next((self._operations[id(value)] for value in values if id(value) in self._operations), None)
            if path is not None:
                self._keep(path, next(value for value in values if isinstance(value, torch.Tensor)), result)
        return result
