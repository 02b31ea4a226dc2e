"""Losses of logits in the parameters' dtype."""

import jax
import optax


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean over the batch of the cross entropy of logits [N, classes] with integer labels [N]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
