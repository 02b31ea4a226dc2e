"""Dynamic loss scaling of float16 by torch's own torch.amp.GradScaler."""

import torch

from torchbackend.precision import BACKOFF_FACTOR, GROWTH_FACTOR, GROWTH_INTERVAL, Policy


def make_grad_scaler(policy: Policy, device: str) -> torch.amp.GradScaler:
    """Return torch's loss scaling, switched off where the policy does not scale."""
    return torch.amp.GradScaler(
        device,
        init_scale=policy.loss_scale or 1.0,
        growth_factor=GROWTH_FACTOR,
        backoff_factor=BACKOFF_FACTOR,
        growth_interval=GROWTH_INTERVAL,
        enabled=policy.loss_scale is not None,
    )
