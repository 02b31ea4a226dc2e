"""Targets on the device: torch's losses take classes as int64, and values in the parameters' dtype."""

import torch

from torchbackend.precision import Policy


def widen(labels: torch.Tensor, policy: Policy) -> torch.Tensor:
    """Return classes as int64, and other targets in the parameters' dtype."""
    return labels.to(policy.parameter_dtype if labels.is_floating_point() else torch.int64)
