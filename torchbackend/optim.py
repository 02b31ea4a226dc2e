"""Update rules, in torch's conventions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from compare.interface import Arrays
from compare.workloads import OptimizerSpec
from torchbackend import layout


def build(spec: OptimizerSpec, model: nn.Module, *, fused: bool, capturable: bool) -> torch.optim.Optimizer:
    """Return the update rule of a workload over a model's parameters.

    `fused` updates all parameters in one kernel (None leaves torch's own choice); `capturable` keeps Adam's step
    count on the device, as a CUDA graph needs it (SGD has none).
    """
    parameters = list(model.parameters())
    choice = True if fused else None
    if spec.name == "sgd":
        return torch.optim.SGD(
            parameters, spec.learning_rate, momentum=spec.momentum, nesterov=spec.nesterov, fused=choice
        )
    return torch.optim.Adam(
        parameters, spec.learning_rate, betas=spec.betas, eps=spec.epsilon, fused=choice, capturable=capturable
    )


def export(optimizer: torch.optim.Optimizer, leaves: Sequence[layout.Leaf]) -> Arrays:
    """Return the optimizer's moments by `KIND/PARAMETER` in neutral layout."""
    arrays: Arrays = {}
    names = (("momentum", "momentum_buffer"), ("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq"))
    for kind, attribute in names:
        for leaf in leaves:
            state: dict[str, Any] = optimizer.state.get(leaf.tensor, {})
            if attribute in state:
                arrays[f"{kind}/{leaf.name}"] = layout.export(state[attribute], leaf)
    return arrays
