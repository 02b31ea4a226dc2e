"""Losses of logits in the parameters' dtype."""

import jax
import optax


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> jax.Array:
    """Return the mean, over all labels of the batch, of the cross entropy of logits with integer labels.

    Labels are [N] for logits [N, classes], or one a pixel, [N, H, W] for [N, H, W, classes].
    `smoothing` is spread evenly over all classes, the true one included (Szegedy et al. 2016, and torch).
    """
    if not smoothing:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype), smoothing)
    return optax.softmax_cross_entropy(logits, targets).mean()
