"""Losses of logits in the parameters' dtype."""

import torch
from torch.nn import functional


def softmax_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Return the mean over the batch of the cross entropy of logits [N, classes] with integer labels [N].

    `smoothing` is spread evenly over all classes, the true one included (Szegedy et al. 2016, and torch).
    """
    return functional.cross_entropy(logits, labels, label_smoothing=smoothing)
