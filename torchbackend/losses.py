"""Losses of logits in the parameters' dtype."""

import torch
from torch.nn import functional


def softmax_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over the batch of the cross entropy of logits [N, classes] with integer labels [N]."""
    return functional.cross_entropy(logits, labels)
