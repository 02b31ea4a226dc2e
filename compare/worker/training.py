"""Whole training runs inside a child: losses, accuracies, and runs from perturbed weights for the certificate."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from compare.agreement.measures import Updates, is_stored, relative_error, update_distances
from compare.base.interface import (
    KEPT_LOSSES,
    Array,
    Arrays,
    Batch,
    RunSpec,
    Session,
)
from compare.base.protocol import finite
from compare.data import weights
from compare.data.seeding import epoch_batches, generator, reorder

_FEW = 8


def initial(session: Session, spec: RunSpec) -> Arrays:
    """Return the weights that training starts from: `compare.data.weights`' own, or those that the spec names."""
    return weights.initialise(session.signature(), spec.seed) if spec.weights is None else weights.load(spec.weights)


def train(
    session: Session, spec: RunSpec, train: Batch, test: Batch, roundoff: float = 0.0, generation: int = 0
) -> dict[str, Any]:
    """Train as `losses` does, for the spec's epochs.

    Returns `loss`, the mean of each epoch (None where not finite), `train_accuracy` and `test_accuracy` at the end: the
    part of all labels, one an image or one a pixel, that were met.
    """
    session.assign(_moved(initial(session, spec), spec, roundoff, generation))
    return {
        "loss": [finite(found.mean()) for found in _epochs(session, spec, train, generation)],
        "train_accuracy": _accuracy(session, train, spec.batch_size),
        "test_accuracy": _accuracy(session, test, spec.batch_size),
    }


def updates(session: Session, spec: RunSpec, train: Batch, steps: int, roundoff: float, runs: int) -> Updates:
    """Return what so many steps change of each parameter and buffer, dispatched as they are timed.

    Its noise is of so many `runs` from weights that are moved as those of a twin (`losses`); infinite where all that
    was added is but a few units of the last place that is stored.
    """
    batches, start = epoch(spec, train, 0), initial(session, spec)
    before, changes = _update(session, start, batches, steps)
    noise = {name: 0.0 if is_stored(array, before[name]) else math.inf for name, array in changes.items()}
    for run in range(1, runs + 1):
        found = update_distances(changes, _update(session, _moved(start, spec, roundoff, run), batches, steps)[1])
        noise = {name: max(noise[name], value) for name, value in found.items()}
    return Updates(changes, noise)


def losses(session: Session, spec: RunSpec, train: Batch, roundoff: float, generation: int) -> list[float | None]:
    """Train from the initial weights and return the loss of every step, None where not finite.

    A twin, of a `generation` that is not 0, rounds otherwise: every initial weight is moved by a relative `roundoff`,
    up or down at random, and the images of each batch are taken in another order, so that sums over them are rounded
    otherwise, too. The generation fixes the signs and the orders.
    """
    session.assign(_moved(initial(session, spec), spec, roundoff, generation))
    return [finite(loss) for found in _epochs(session, spec, train, generation) for loss in found]


def moved(session: Session, start: Arrays) -> dict[str, float | None]:
    """Return how far each parameter is from where it began, relative to that, both as norms; None where not finite.

    One that begins as zeros is left out, and one of few elements: where its gradient is but rounding, they may cancel.
    """
    found = dict[str, float | None]()
    for name, array in session.export().parameters.items():
        if array.size >= _FEW and start[name].any():
            found[name] = finite(relative_error(array, start[name]))
    return found


def epoch(spec: RunSpec, train: Batch, number: int) -> list[Batch]:
    """Return the batches of one epoch in their shuffled order."""
    return epoch_batches(train, seed=spec.seed, epoch=number, batch_size=spec.batch_size)


def _update(session: Session, start: Arrays, batches: Sequence[Batch], steps: int) -> tuple[Arrays, Arrays]:
    """Return each parameter and buffer as it was, and what was added to it."""
    session.assign(start)
    before = _stored(session)
    session.feed(batches)
    session.run(steps)
    return before, {name: array - before[name] for name, array in _stored(session).items()}


def _stored(session: Session) -> Arrays:
    state = session.export()
    return {**state.parameters, **state.buffers}


def _moved(start: Arrays, spec: RunSpec, roundoff: float, generation: int) -> Arrays:
    if not generation:
        return start
    random = np.random.default_rng((spec.seed, generation))
    return {name: weights.perturb(array, roundoff, random) for name, array in start.items()}


def _epochs(session: Session, spec: RunSpec, train: Batch, generation: int) -> Iterator[Array]:
    """Train epoch after epoch and yield the losses [steps] of each."""
    for number in range(spec.epochs):
        batches = epoch(spec, train, number)
        if generation:  # what batch norm takes together, a micro-batch or a device's part, stays together
            random = generator("twin", spec.seed, generation, number)
            for place, batch in enumerate(batches):
                batches[place] = reorder(batch, spec.accumulate * spec.devices, random)
        session.feed(batches)
        yield _run(session, len(batches))


def _run(session: Session, steps: int) -> Array:
    """Train so many steps and return the loss of each; no more are taken at a time than a session keeps losses of."""
    most, found = KEPT_LOSSES // session.steps_per_dispatch * session.steps_per_dispatch, list[Array]()
    while steps:
        count = min(steps, most)
        session.run(count)
        found.append(session.losses()[-count:])
        steps -= count
    return np.concatenate(found)


def _accuracy(session: Session, batch: Batch, size: int) -> float:
    right = 0
    for start in range(0, len(batch.labels), size):
        labels = batch.labels[start : start + size]
        images = batch.values(slice(start, start + len(labels)))  # of their first view, where there are several
        padded = np.concatenate([images, np.zeros((size - len(images), *images.shape[1:]), images.dtype)])
        right += int((session.logits(padded)[: len(images)].argmax(-1) == labels).sum())
    return right / batch.labels.size
