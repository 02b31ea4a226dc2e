"""Losses of logits in the parameters' dtype."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_map

from compare.base import task
from compare.base.task import Output, Task
from compare.worker import factories


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


def binary_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean binary cross entropy of logits with targets of 0 and 1."""
    return functional.binary_cross_entropy_with_logits(logits, targets)


def mean_squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference."""
    return functional.mse_loss(outputs, targets)


def mean_absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute difference."""
    return functional.l1_loss(outputs, targets)


def huber(outputs: torch.Tensor, targets: torch.Tensor, delta: float) -> torch.Tensor:
    """Return the mean of Huber's loss, quadratic up to a difference of `delta` (Huber 1964, and torch)."""
    return functional.huber_loss(outputs, targets, delta=delta)


_ELEMENTWISE: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
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

    def __init__(self, chosen: Task, dtype: torch.dtype, function: Callable[..., Any] | None) -> None:
        self._task, self._dtype, self._function = chosen, dtype, function

    def __call__(self, result: Any, targets: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return the loss and the outputs as `collect` does. Targets are packed as by `compare.data.targets`."""
        outputs, parts = self._find(result), task.unpack_targets(self._task, targets)
        if self._function is not None:
            (output, own), whole = parts[0], tree_map(self._cast, result)
            own = _to_own_layout(output, own)
            if torch.compiler.is_compiling():
                return self._function(whole, own), self.collect(result)
            return factories.call_function(self._function, whole, own), self.collect(result)
        arrays = dict(outputs)
        losses = [output.weight * self._loss(output, arrays[output], part) for output, part in parts]
        return sum(losses[1:], start=losses[0]), self.collect(result)

    def collect(self, result: Any) -> tuple[torch.Tensor, ...]:
        """Return the outputs in a model's result, in neutral layout, as the task orders them."""
        return tuple(_to_neutral(output, array) for output, array in self._find(result))

    def _find(self, result: Any) -> list[tuple[Output, torch.Tensor]]:
        arrays = task.flatten_outputs(result, lambda value: isinstance(value, torch.Tensor))
        return [(output, self._cast(array)) for output, array in task.find_outputs(self._task, arrays, "torch")]

    def _loss(self, output: Output, array: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if output.loss == task.CROSS_ENTROPY:
            logits = array if output.is_channels_first else array.movedim(-1, 1)
            return softmax_cross_entropy(logits, targets.to(torch.int64), output.label_smoothing)
        targets = _to_own_layout(output, targets).reshape(array.shape)
        if output.loss == "huber":
            return huber(array, targets, output.delta)
        return _ELEMENTWISE[output.loss](array, targets)

    def _cast(self, array: Any) -> Any:
        is_real = isinstance(array, torch.Tensor) and array.is_floating_point()
        return array.to(self._dtype) if is_real else array


def _to_own_layout(output: Output, targets: torch.Tensor) -> torch.Tensor:
    """Return targets with their channels where torch's output has them."""
    has_channels = output.is_channels_first and targets.ndim == len(output.shape or ()) + 1
    return targets.movedim(-1, 1) if has_channels and targets.is_floating_point() else targets


def _to_neutral(output: Output, array: torch.Tensor) -> torch.Tensor:
    neutral = array.movedim(1, -1) if output.is_channels_first and array.ndim > 2 else array
    shape = output.shape or ()
    return neutral.reshape(-1, *shape) if neutral[:1].numel() == math.prod(shape) else neutral
