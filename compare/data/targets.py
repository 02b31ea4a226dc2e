"""Synthetic inputs and targets for the task of a user's pair, from the run's seed alone.

Targets follow from the inputs, so that a model can learn them. A dense target follows from the image around its place.
Other targets follow from the hidden class of the example, which shapes its inputs.
"""

import math

import numpy as np

from compare.base import task
from compare.base.interface import Array, Batch
from compare.base.task import Output, Task
from compare.base.workloads import Workload
from compare.data import synthetic
from compare.data.seeding import make_generator


def make(workload: Workload, image: tuple[int, int, int], *, seed: int, train: int, test: int) -> tuple[Batch, Batch]:
    """Return a training and a test set for a task whose outputs are known.

    Raises:
        Refused: they would need too much memory.
    """
    synthetic.check((1, 1, count_values(workload, image)), train + test)
    classes = workload.model.classes
    sets = synthetic.make(image, classes=classes, seed=seed, train=train, test=test)
    return _complete(workload, sets[0], "train", seed), _complete(workload, sets[1], "test", seed)


def count_values(workload: Workload, image: tuple[int, int, int]) -> int:
    """Return the numbers in the inputs and targets of one example."""
    outputs = workload.task.with_targets if workload.task is not None and workload.task.is_resolved else ()
    return math.prod(image) + sum(output.target_size for output in outputs)


def _complete(workload: Workload, batch: Batch, part: str, seed: int) -> Batch:
    hidden, images, start = batch.labels, batch.images, 0
    spaces: list[Array] = [] if workload.model.inputs else [images]
    for each in workload.model.inputs:
        columns = images[:, 0, 0, start : start + each.size]
        if each.below is not None:
            columns[:] = make_generator("inputs", seed, part, each.name).integers(each.below, size=columns.shape)
        else:
            spaces.append(columns.reshape(len(hidden), *each.shape))
        start += each.size
    if workload.task is None:
        return batch
    space = spaces[0] if spaces else None
    parts = [_target(output, hidden, space, workload.model.classes, seed) for output in workload.task.with_targets]
    return Batch(images, _pack(workload.task, parts), batch.levels)


def _target(output: Output, hidden: Array, space: Array | None, classes: int, seed: int) -> Array:
    """Return the targets [N, ...] of an output. `hidden` [N] are classes, and `space` is the first real input."""
    if output.target == task.INPUT:
        assert space is not None
        return space.reshape(len(hidden), *output.target_shape)
    if output.target == task.LABELS:
        count = (output.shape or (classes,))[-1]
        if not output.target_shape:
            return (hidden % count).astype(np.int32)
        values = _values((*output.target_shape, 1), hidden, space, output.name, seed)[..., 0]
        edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])  # every class is as frequent
        return np.digitize(values, edges).astype(np.int32)
    values = _values(output.target_shape, hidden, space, output.name, seed)
    return (values > 0).astype(np.float32) if output.target == task.BINARY_TARGET else values


def _values(shape: tuple[int, ...], hidden: Array, space: Array | None, name: str, seed: int) -> Array:
    """Return real targets [N, *shape] with a variance of about 1."""
    random = make_generator("targets", seed, name)
    if space is not None and space.ndim > 2 and len(shape) == space.ndim - 1:
        mixed = random.normal(0, space.shape[-1] ** -0.5, (space.shape[-1], shape[-1])).astype(np.float32)
        places: Array = space
        for axis, size in enumerate(shape[:-1], start=1):  # the nearest place of the input
            places = places.take(np.arange(size) * places.shape[axis] // size, axis)
        dense: Array = places @ mixed
        return dense.astype(np.float32)
    fields = random.standard_normal((int(hidden.max(initial=0)) + 1, *shape), np.float32)
    return fields[hidden]


def _pack(chosen: Task, parts: list[Array]) -> Array:
    """Return the only targets as they are, and several in one float32 row for each example."""
    if not chosen.is_packed:
        return np.ascontiguousarray(parts[0])
    return np.concatenate([part.reshape(len(part), -1).astype(np.float32) for part in parts], axis=1)
