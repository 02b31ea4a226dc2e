"""Losses of logits in the parameters' dtype."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from compare.base import task
from compare.base.task import Output, Task
from compare.worker import factories


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> jax.Array:
    """Return the mean, over all labels of the batch, of the cross entropy of logits with integer labels.

    Labels are [N] for logits [N, classes], or one a pixel, [N, H, W] for [N, H, W, classes].
    `smoothing` is spread evenly over all classes, the true one included (Szegedy et al. 2016, and torch).
    """
    if not smoothing:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype), smoothing)
    return optax.softmax_cross_entropy(logits, targets).mean()


def binary_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean binary cross entropy of logits with targets of 0 and 1."""
    return optax.sigmoid_binary_cross_entropy(logits, targets).mean()


def mean_squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean squared difference."""
    return jnp.square(outputs - targets).mean()


def mean_absolute_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean absolute difference."""
    return jnp.abs(outputs - targets).mean()


def huber(outputs: jax.Array, targets: jax.Array, delta: float) -> jax.Array:
    """Return the mean of Huber's loss, quadratic up to a difference of `delta` (Huber 1964, and torch)."""
    return optax.huber_loss(outputs, targets, delta=delta).mean()


_ELEMENTWISE: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    task.BINARY: binary_cross_entropy,
    "mse": mean_squared_error,
    "l1": mean_absolute_error,
}


class TaskLoss:
    """The loss of a user's pair: the weighted sum of the losses of its outputs.

    Args:
        chosen: the outputs with their losses.
        dtype: the parameters' dtype, in which losses are computed.
        function: the user's own loss of the model's whole result and its targets; None for none.
    """

    def __init__(self, chosen: Task, dtype: Any, function: Callable[..., Any] | None) -> None:
        self._task, self._dtype, self._function = chosen, dtype, function

    def __call__(self, result: Any, targets: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Return the loss and the outputs as `collect` does. Targets are packed as by `compare.data.targets`."""
        outputs, parts = self._find(result), task.unpack_targets(self._task, targets)
        if self._function is not None:
            (_, own), whole = parts[0], jax.tree.map(self._cast, result)
            return factories.call_function(self._function, whole, own), self.collect(result)
        arrays = dict(outputs)
        losses = [output.weight * self._loss(output, arrays[output], part) for output, part in parts]
        return sum(losses[1:], start=losses[0]), tuple(arrays.values())

    def collect(self, result: Any) -> tuple[jax.Array, ...]:
        """Return the outputs in a model's result, in neutral layout, as the task orders them."""
        return tuple(array for _, array in self._find(result))

    def _find(self, result: Any) -> list[tuple[Output, jax.Array]]:
        arrays = task.flatten_outputs(result, lambda value: isinstance(value, jax.Array))
        return [(output, self._cast(array)) for output, array in task.find_outputs(self._task, arrays, "jax")]

    def _loss(self, output: Output, array: jax.Array, targets: jax.Array) -> jax.Array:
        if output.loss == task.CROSS_ENTROPY:
            return softmax_cross_entropy(array, targets.astype(jnp.int32), output.label_smoothing)
        if output.loss == "huber":
            return huber(array, targets, output.delta)
        return _ELEMENTWISE[output.loss](array, targets)

    def _cast(self, array: jax.Array) -> jax.Array:
        return array.astype(self._dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array
