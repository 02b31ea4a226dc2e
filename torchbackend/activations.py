"""Every layer's output by the layer's path, in execution order; a layer's second call in one pass is `PATH#2`."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def recorded(model: nn.Module) -> Generator[dict[str, torch.Tensor]]:
    """Collect the output of each layer without sub-layers while the context lasts."""
    outputs: dict[str, torch.Tensor] = {}

    def recording(name: str) -> Any:
        def hook(_layer: nn.Module, _inputs: Any, result: torch.Tensor) -> None:
            outputs[unused(name, outputs)] = result.detach()

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if _is_leaf(module):
                stack.enter_context(module.register_forward_hook(recording(name)))
        yield outputs


def unused(path: str, outputs: Mapping[str, Any]) -> str:
    """Return the path, numbered if an earlier call has taken it."""
    calls = 1 + sum(name.partition("#")[0] == path for name in outputs)
    return path if calls == 1 else f"{path}#{calls}"


def _is_leaf(module: nn.Module) -> bool:
    return not any(module.children())
