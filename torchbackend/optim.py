"""Update rules, in torch's conventions."""

import math
from typing import Any

import torch

from compare.base.interface import Arrays
from compare.base.workloads import OptimizerSpec
from torchbackend import layout


def build(spec: OptimizerSpec, leaves: layout.Leaves, *, fused: bool, capturable: bool) -> torch.optim.Optimizer:
    """Return the update rule of a workload over a model's parameters.

    `fused` updates all parameters in one kernel. `capturable` keeps Adam's step count and a scheduled learning rate on
    the device, as a CUDA graph needs them.
    """
    groups, rate = _groups(spec, leaves), spec.learning_rate
    choice = True if fused else None
    if capturable and not spec.schedule.is_constant:
        rate = torch.tensor(rate, dtype=torch.float32, device=groups[0]["params"][0].device)
    if spec.name == "sgd":
        return torch.optim.SGD(groups, rate, momentum=spec.momentum, nesterov=spec.nesterov, fused=choice)
    rule = torch.optim.AdamW if spec.decoupled else torch.optim.Adam
    return rule(groups, rate, betas=spec.betas, eps=spec.epsilon, fused=choice, capturable=capturable)


def clip(optimizer: torch.optim.Optimizer, clip_norm: float) -> None:
    """Scale all gradients down to a common norm (`compare.base.workloads.OptimizerSpec`)."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, clip_norm)


def learning_rate(spec: OptimizerSpec, step: torch.Tensor) -> Any:
    """Return the learning rate of a step, counted from 0 (`compare.base.workloads.Schedule`)."""
    if spec.schedule.is_constant:
        return spec.learning_rate
    schedule, rate = spec.schedule, spec.learning_rate
    if schedule.warmup:
        rate *= torch.clamp((step + 1) / schedule.warmup, max=1.0)
    if schedule.name == "step":
        rate *= schedule.factor ** sum((step >= milestone).double() for milestone in schedule.milestones)
    if schedule.name == "cosine":
        left = torch.clamp((schedule.total - step) / max(1, schedule.total - schedule.warmup), 0.0, 1.0)
        rate *= torch.square(torch.sin(math.pi / 2 * left))  # (1 + cos(pi * (1 - left))) / 2, which cancels in the end
    return torch.as_tensor(rate, dtype=torch.float32)


def rates(spec: OptimizerSpec) -> dict[str, float]:
    """Return the learning rates, to six digits, of the steps at which the schedule turns (`Schedule.turns`)."""
    exact = {step: learning_rate(spec, torch.tensor(step, dtype=torch.float64)) for step in spec.schedule.turns}
    return {str(step): float(f"{float(rate):.6g}") for step, rate in exact.items()}


def schedule(optimizer: torch.optim.Optimizer, spec: OptimizerSpec, step: torch.Tensor) -> None:
    """Set the learning rate of a step, counted from 0 in a tensor on `rate_device`."""
    rate = learning_rate(spec, step)
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].copy_(rate)
        else:
            group["lr"] = float(rate)


def rate_device(optimizer: torch.optim.Optimizer) -> torch.device:
    """Return the device of the optimizer's learning rate."""
    rate = optimizer.param_groups[0]["lr"]
    return rate.device if isinstance(rate, torch.Tensor) else torch.device("cpu")


def export(optimizer: torch.optim.Optimizer, leaves: layout.Leaves) -> Arrays:
    """Return the optimizer's moments by `KIND/PARAMETER` in neutral layout."""
    arrays: Arrays = {}
    names = (("momentum", "momentum_buffer"), ("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq"))
    states: dict[str, dict[str, Any]] = {leaf.name: optimizer.state.get(leaf.tensor, {}) for leaf in leaves}
    for kind, attribute in names:
        moments = {name: state[attribute] for name, state in states.items() if attribute in state}
        exported = layout.fetch(layout.export(moments, leaves))
        arrays |= {f"{kind}/{name}": array for name, array in exported.items()}
    return arrays


def _groups(spec: OptimizerSpec, leaves: layout.Leaves) -> list[dict[str, Any]]:
    parameters = [leaf for leaf in leaves if leaf.is_parameter]
    # A tensor may hold the variables of several layers, and is trained once.
    decayed = {id(leaf.tensor): leaf.tensor for leaf in parameters if spec.decays(leaf.name)}
    others = {id(leaf.tensor): leaf.tensor for leaf in parameters if not spec.decays(leaf.name)}
    groups = [
        {"params": list(decayed.values()), "weight_decay": spec.weight_decay},
        {"params": list(others.values()), "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
