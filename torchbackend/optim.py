"""Update rules, in torch's conventions."""

import math
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
    groups = _groups(spec, model)
    choice = True if fused else None
    if spec.name == "sgd":
        return torch.optim.SGD(groups, spec.learning_rate, momentum=spec.momentum, nesterov=spec.nesterov, fused=choice)
    rule = torch.optim.AdamW if spec.decoupled else torch.optim.Adam
    return rule(groups, spec.learning_rate, betas=spec.betas, eps=spec.epsilon, fused=choice, capturable=capturable)


def learning_rate(spec: OptimizerSpec, step: int) -> float:
    """Return the learning rate of a step, counted from 0 (`compare.workloads.Schedule`)."""
    schedule, rate = spec.schedule, spec.learning_rate
    if schedule.warmup:
        rate *= min(1.0, (step + 1) / schedule.warmup)
    if schedule.name == "step":
        rate *= schedule.factor ** sum((step >= milestone) * 1.0 for milestone in schedule.milestones)
    if schedule.name == "cosine":
        progress = min(1.0, max(0.0, (step - schedule.warmup) / max(1, schedule.total - schedule.warmup)))
        rate *= 0.5 * (1 + math.cos(math.pi * progress))
    return rate


def schedule(optimizer: torch.optim.Optimizer, spec: OptimizerSpec, step: int) -> None:
    """Set the learning rate of a step; a constant one is left alone."""
    if not spec.schedule.is_constant:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec, step)


def export(optimizer: torch.optim.Optimizer, leaves: Sequence[layout.Leaf]) -> Arrays:
    """Return the optimizer's moments by `KIND/PARAMETER` in neutral layout."""
    arrays: Arrays = {}
    names = (("momentum", "momentum_buffer"), ("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq"))
    states: dict[str, dict[str, Any]] = {leaf.name: optimizer.state.get(leaf.tensor, {}) for leaf in leaves}
    for kind, attribute in names:
        moments = {name: state[attribute] for name, state in states.items() if attribute in state}
        exported = layout.fetched(layout.export(moments, leaves))
        arrays |= {f"{kind}/{name}": array for name, array in exported.items()}
    return arrays


def _groups(spec: OptimizerSpec, model: nn.Module) -> list[dict[str, Any]]:
    leaves = [leaf for leaf in layout.leaves(model) if leaf.is_parameter]
    if not spec.decay_kernels_only:
        return [{"params": [leaf.tensor for leaf in leaves], "weight_decay": spec.weight_decay}]
    kernels = [leaf.tensor for leaf in leaves if leaf.name.endswith("kernel")]
    others = [leaf.tensor for leaf in leaves if not leaf.name.endswith("kernel")]
    return [{"params": kernels, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
