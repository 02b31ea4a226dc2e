"""Every layer's output by the layer's path, in execution order. A layer's second call in one pass is `PATH#2`."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from compare.base.trace import number_call
from torchbackend import layout
from torchbackend.only.modules import find_module
from torchbackend.only.operations import OperationRecorder, find_kernel

_T = TypeVar("_T")


@contextmanager
def record(
    model: nn.Module, layers: Mapping[str, str] | None = None, *, inputs: bool = False, copies: bool = False
) -> Generator[dict[str, torch.Tensor]]:
    """Collect the outputs of layers while the context lasts. The dict fills at its end.

    Args:
        model: the model that is called within the context.
        layers: path in the model to the name of the layer's output. None: all layers without sub-layers, by path.
        inputs: also record each layer's input as `NAME.input`, before its output. Inputs and outputs are then copied,
            because users' models change activations in place.
        copies: copy outputs, too. A compiled model in DistributedDataParallel becomes one program for each bucket of
            gradients. torch 2.11 fails on a program that returns a view and the same view detached.
    """
    chosen = layout.names(model).layers if layers is None else layers
    arguments, returned = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    outputs: dict[str, torch.Tensor] = {}

    def before(path: str) -> Any:
        def hook(_layer: nn.Module, positional: Any, keywords: Any) -> None:
            arguments[number_call(path, arguments)] = _first_tensor((positional, keywords)).detach().clone()

        return hook

    def after(path: str) -> Any:
        def hook(_layer: nn.Module, _inputs: Any, result: Any) -> None:
            output = _first_tensor(result).detach()
            returned[number_call(path, returned)] = output.clone() if inputs or copies else output

        return hook

    def keep(path: str, x: torch.Tensor, result: torch.Tensor) -> None:
        if inputs:
            arguments[number_call(path, arguments)] = x.detach().clone()
        output = result.detach()
        returned[number_call(path, returned)] = output.clone() if inputs or copies else output

    paths = dict.fromkeys(own.partition("#")[0] for own in chosen)
    operations = {id(kernel): path for path in paths if (kernel := find_kernel(model, path)) is not None}
    with ExitStack() as stack:
        if operations:
            stack.enter_context(OperationRecorder(operations, keep))
        for path in paths.keys() - set(operations.values()):
            module = find_module(model, path)
            if inputs:
                stack.enter_context(module.register_forward_pre_hook(before(path), with_kwargs=True))
            stack.enter_context(module.register_forward_hook(after(path)))
        yield outputs
    for own, output in returned.items():
        path, mark, call = own.partition("#")
        name = chosen.get(own, f"{chosen.get(path, path)}{mark}{call}")
        if inputs:
            outputs[f"{name}.input"] = arguments[own]
        outputs[name] = output


def product(roles: Mapping[str, str], outputs: Mapping[str, _T]) -> _T:
    """Return the output of the first convolution, else of a dense layer, by the layers' `roles`.

    Its dtype and memory order are those of products. A kernel of one channel would not show the memory order.
    """
    for role in ("convolution", "dense"):
        for name, output in outputs.items():
            if roles.get(name) == role:
                return output
    return next(iter(outputs.values()))


def _first_tensor(values: Any) -> torch.Tensor:
    """Return the first tensor among a layer's arguments or results."""
    return next(value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
