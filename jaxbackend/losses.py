"""Losses, in the parameters' dtype whatever the compute dtype."""

from typing import Any

import jax
import optax


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array, dtype: Any) -> jax.Array:
    """Return the mean over the batch of the cross entropy of logits [N, classes] with integer labels [N]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(dtype), labels).mean()
