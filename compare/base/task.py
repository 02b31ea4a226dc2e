"""The task of a user's own pair: its inputs, its outputs, and the loss of each output.

A workload without a task takes images and trains their classes by cross-entropy.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from compare.base.errors import Refused

CROSS_ENTROPY, BINARY, OWN_LOSS, NO_LOSS = "cross-entropy", "binary-cross-entropy", "own", "none"
LOSSES = (CROSS_ENTROPY, BINARY, "mse", "l1", "huber")
"""The losses that samestep knows. Each is a mean over all elements of its targets."""

LABELS, BINARY_TARGET, VALUES, INPUT = TARGETS = ("labels", "binary", "values", "input")
"""The kinds of targets: classes, zeros and ones, real values, and the model's own first input."""


@dataclass(frozen=True)
class Input:
    """One input of a model.

    Attributes:
        name: its name in the call; "" if the models take it by its place.
        shape: its neutral shape without the batch, channels last.
        below: integers from 0 to below this limit; None for real values.
        is_same_on_both: whether torch takes the axes in the same order. Otherwise it takes the channels first.
    """

    name: str
    shape: tuple[int, ...]
    below: int | None = None
    is_same_on_both: bool = False

    @property
    def size(self) -> int:
        """The number of its values for one example."""
        return math.prod(self.shape)

    @property
    def is_channels_first(self) -> bool:
        """Whether torch takes it with the channels before the other axes."""
        return self.below is None and len(self.shape) > 1 and not self.is_same_on_both


@dataclass(frozen=True)
class Output:
    """One output of a model, and its loss.

    Attributes:
        name: its name or place in the result of the torch model; "" for the only output.
        loss: one of `LOSSES`, `OWN_LOSS` or `NO_LOSS`.
        target: one of `TARGETS`.
        weight: the factor on its loss in the sum of all losses.
        label_smoothing: of cross-entropy.
        delta: of Huber's loss.
        jax: its name or place in the result of the JAX model.
        shape: its neutral shape without the batch; None until the models are traced.
        is_channels_first: whether torch's output has its channels before the other axes.
    """

    name: str = ""
    loss: str = CROSS_ENTROPY
    target: str = LABELS
    weight: float = 1.0
    label_smoothing: float = 0.0
    delta: float = 1.0
    jax: str = ""
    shape: tuple[int, ...] | None = None
    is_channels_first: bool = False

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of its targets without the batch."""
        assert self.shape is not None
        return self.shape[:-1] if self.target == LABELS else self.shape

    @property
    def target_size(self) -> int:
        """The number of its targets for one example."""
        return math.prod(self.target_shape)


@dataclass(frozen=True)
class Task:
    """The outputs of a model, in the order of torch's result.

    Attributes:
        outputs: all outputs. A loss of the user's own takes the whole result, and stands at the first output.
    """

    outputs: tuple[Output, ...]

    @property
    def is_resolved(self) -> bool:
        """Whether the models were traced."""
        return all(output.shape is not None for output in self.outputs)

    @property
    def with_targets(self) -> tuple[Output, ...]:
        """The outputs that have targets."""
        return tuple(output for output in self.outputs if output.loss != NO_LOSS)

    @property
    def is_packed(self) -> bool:
        """Whether the targets of several outputs lie in one row of numbers for each example."""
        return len(self.with_targets) > 1

    @property
    def first(self) -> Output:
        """The first output with a loss. Accuracy is measured on it."""
        return self.with_targets[0]


def pack_image(inputs: Sequence[Input]) -> tuple[int, int, int]:
    """Return the shape of inputs that lie in one row for each example, as an image of one pixel."""
    return 1, 1, sum(each.size for each in inputs)


def unpack_inputs(inputs: Sequence[Input], row: Any, convert: Callable[[Input, Any], Any]) -> list[Any]:
    """Return the inputs [N, ...] of a row [N, 1, 1, values] or [N, values, 1, 1], each by `convert`."""
    flat, values, start = row.reshape(row.shape[0], -1), list[Any](), 0
    for each in inputs:
        values.append(convert(each, flat[:, start : start + each.size].reshape((row.shape[0], *each.shape))))
        start += each.size
    return values


def unpack_targets(task: Task, targets: Any) -> list[tuple[Output, Any]]:
    """Return every output that has targets, with its targets [N, ...]."""
    if not task.is_packed:
        return [(task.first, targets)]
    parts, start = list[tuple[Output, Any]](), 0
    for output in task.with_targets:
        part = targets[:, start : start + output.target_size]
        parts.append((output, part.reshape((targets.shape[0], *output.target_shape))))
        start += output.target_size
    return parts


def flatten_outputs(result: Any, is_array: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the arrays of a model's result by name or place, joined by dots. A single array has the name "".

    Tuples, lists, mappings, named tuples and dataclasses may be nested. None is left out.

    Raises:
        Refused: something else is in the result.
    """
    return dict(_flatten(result, "", is_array))


def find_outputs(task: Task, arrays: Mapping[str, Any], backend: str) -> list[tuple[Output, Any]]:
    """Return the outputs in `arrays`. In evaluation, a model may return fewer of them than in training."""
    names = [output.name if backend == "torch" else output.jax for output in task.outputs]
    if set(arrays) <= set(names):
        return [(output, arrays[name]) for output, name in zip(task.outputs, names, strict=True) if name in arrays]
    return list(zip(task.outputs, arrays.values(), strict=False))


def pack_outputs(arrays: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Return the outputs [N, ...] as one array: the only one as it is, several in one row for each example.

    `join` joins rows along their second axis.
    """
    if len(arrays) == 1:
        return arrays[0]
    return join([array.reshape(len(array), -1) for array in arrays])


def _flatten(result: Any, path: str, is_array: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    if is_array(result):
        yield path, result
        return
    parts: Mapping[Any, Any]
    if isinstance(result, Mapping):
        parts = cast("Mapping[Any, Any]", result)
    elif hasattr(result, "_asdict"):
        parts = result._asdict()
    elif isinstance(result, (tuple, list)):
        parts = dict(enumerate(cast("Sequence[Any]", result)))
    elif dataclasses.is_dataclass(result):
        parts = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    elif result is None:
        return
    else:
        raise Refused(
            f"the model returns a {type(result).__name__}{f' at {path}' if path else ''}; allowed: arrays, and tuples, "
            "dictionaries or dataclasses of arrays"
        )
    for key, part in parts.items():
        yield from _flatten(part, f"{path}.{key}" if path else str(key), is_array)


def describe_losses(task: Task | None) -> tuple[str, ...]:
    """Return the loss of each output with targets, with the output's name and weight if there are several."""
    if task is None:
        return (CROSS_ENTROPY,)
    several = len(task.with_targets) > 1
    return tuple(
        (f"{each.name} " if several else "") + each.loss + (f" with weight {each.weight:g}" if each.weight != 1 else "")
        for each in task.with_targets
    )
