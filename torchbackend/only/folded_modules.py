"""Batch norm folded into the convolutions before it: the knob `fold-batch-norm`."""

from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from compare.base.errors import take_first_line
from compare.base.interface import Refused


class _Tracer(fx.Tracer):
    """Sees a convolution or batch norm as one operation, also one of a subclass."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one operation."""
        return isinstance(m, (_ConvNd, _BatchNorm)) or super().is_leaf_module(m, module_qualified_name)


def fold(model: nn.Module) -> list[str]:
    """Fold every batch norm that alone reads a convolution. Return the paths of the convolutions.

    The convolution gets the kernel and bias that both had together, computed in float64. The batch norm becomes an
    identity. The model must be in evaluation mode.

    Raises:
        Refused: torch cannot trace the model.
    """
    pairs = find_pairs(model)
    for conv, norm in pairs.items():
        _fold(model.get_submodule(conv), model.get_submodule(norm))
        model.set_submodule(norm, nn.Identity())
    return list(pairs)


def find_pairs(model: nn.Module) -> dict[str, str]:
    """Return the path of each batch norm that can be folded, by its convolution's path."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:
        raise Refused(
            f"fold-batch-norm: torch.fx cannot trace the model: {take_first_line(error)}; allowed: +fold-batch-norm=off"
        ) from error
    calls = [node for node in graph.nodes if node.op == "call_module"]
    targets = [node.target for node in calls]
    pairs = dict[str, str]()
    for node in calls:
        before: Any = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        conv, norm = model.get_submodule(str(before.target)), model.get_submodule(str(node.target))
        is_pair = isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats
        if is_pair and targets.count(before.target) == targets.count(node.target) == 1:
            pairs[str(before.target)] = str(node.target)
    return pairs


def _fold(conv: nn.Module, norm: nn.Module) -> None:
    weight, bias, eps = (getattr(norm, name) for name in ("weight", "bias", "eps"))
    mean, var = norm.get_buffer("running_mean").double(), norm.get_buffer("running_var").double()
    factor = (var + eps).rsqrt() * (1.0 if weight is None else weight.double())
    kernel, old = conv.get_parameter("weight"), getattr(conv, "bias", None)
    shift = (0.0 if old is None else old.double()) - mean
    shift = shift * factor + (0.0 if bias is None else bias.double())
    with torch.no_grad():
        kernel.copy_(kernel.double() * factor[:, None, None, None])
    conv.register_parameter("bias", nn.Parameter(shift.to(kernel.dtype), requires_grad=False))
