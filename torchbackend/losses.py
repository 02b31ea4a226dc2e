"""Losses of logits in the parameters' dtype."""

import torch
from torch.nn import functional


def softmax_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Return the mean, over all labels of the batch, of the cross entropy of logits with integer labels.

    Labels are [N] for logits [N, classes], or one a pixel, [N, H, W] for [N, classes, H, W].
    `smoothing` is spread evenly over all classes, the true one included (Szegedy et al. 2016, and torch).
    """
    if (
        labels.ndim > 1 and torch.are_deterministic_algorithms_enabled()
    ):  # torch has no deterministic loss for pixel labels on CUDA
        logits, labels = logits.movedim(1, -1).flatten(0, -2), labels.flatten()
    return functional.cross_entropy(logits, labels, label_smoothing=smoothing)
