"""Train a session for whole runs: losses, accuracies, and twins from perturbed weights for the certificate.

A twin is a training run that rounds differently. A relative `roundoff` moves each initial weight up or down at random,
and the images of each batch come in another order, so that sums over them round differently too. The `generation`
fixes the signs and the orders. Generation 0 is the run itself.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from compare.agreement.measures import Updates, compute_relative_error, is_stored, update_distances
from compare.base import descriptions, task
from compare.base.commands import TrainingResult
from compare.base.interface import INFER, KEPT_LOSSES, Array, Arrays, Batch, RunSpec, Session
from compare.base.protocol import drop_infinite
from compare.data import pruning, weights
from compare.data.seeding import draw_epoch_batches, make_generator, reorder

_FEW_ELEMENTS = 8


def make_initial_weights(session: Session, spec: RunSpec) -> Arrays:
    """Return the weights that training starts from: those that the spec names, or `compare.data.weights.initialise`.

    Requests take `compare.data.weights.randomise`, because a compiler drops additions of constant zeros. A pruned model
    gets the weights of the full model, without the removed channels.
    """
    if spec.weights is not None:
        return weights.load(spec.weights)
    draw = weights.randomise if spec.task == INFER else weights.initialise
    model = descriptions.read_workload(spec).model
    return pruning.fill(model, session.signature(), lambda shapes: draw(shapes, spec.seed))


def train(
    session: Session,
    spec: RunSpec,
    train: Batch,
    test: Batch,
    roundoff: float = 0.0,
    generation: int = 0,
    *,
    only_test: bool = False,
) -> TrainingResult:
    """Train for the spec's epochs and return the mean loss of each epoch, all losses, and the accuracies at the end.

    An accuracy is the share of correct labels. A label belongs to an image or to a pixel. If `only_test`, the training
    accuracy is left out.
    """
    session.assign(_perturb(make_initial_weights(session, spec), spec, roundoff, generation))
    epochs = list(_train_epochs(session, spec, train, generation))
    return TrainingResult(
        loss=[drop_infinite(losses.mean()) for losses in epochs],
        train_accuracy=None if only_test else _measure_accuracy(session, train, spec),
        test_accuracy=_measure_accuracy(session, test, spec),
        step_losses=[drop_infinite(loss) for losses in epochs for loss in losses],
    )


def measure_updates(session: Session, spec: RunSpec, train: Batch, steps: int, roundoff: float, runs: int) -> Updates:
    """Return the change of each parameter and buffer in `steps` steps, dispatched as in timed blocks, and its noise.

    The noise comes from `runs` runs from weights that are perturbed by `roundoff`, relatively. It is infinite for a
    tensor that changes by only a few units in the last place.
    """
    batches, initial = draw_batches_of_epoch(spec, train, 0), make_initial_weights(session, spec)
    before, changes = _take_steps(session, initial, batches, steps)
    noise = {name: 0.0 if is_stored(array, before[name]) else math.inf for name, array in changes.items()}
    for run in range(1, runs + 1):
        _, perturbed = _take_steps(session, _perturb(initial, spec, roundoff, run), batches, steps)
        noise = {name: max(noise[name], value) for name, value in update_distances(changes, perturbed).items()}
    return Updates(changes, noise)


def measure_losses(
    session: Session, spec: RunSpec, train: Batch, roundoff: float, generation: int
) -> list[float | None]:
    """Train from the initial weights and return the loss of every step. A loss that is not finite is None.

    A `generation` other than 0 is a twin: its weights are perturbed by `roundoff`, relatively.
    """
    session.assign(_perturb(make_initial_weights(session, spec), spec, roundoff, generation))
    return [drop_infinite(loss) for losses in _train_epochs(session, spec, train, generation) for loss in losses]


def measure_movement(session: Session, initial: Arrays) -> dict[str, float | None]:
    """Return how far each parameter is from its initial value, relative to it, as norms. None is not finite.

    Parameters that start as zeros are left out. So are parameters of few elements, because a gradient that is only
    rounding may cancel in them.
    """
    moved = dict[str, float | None]()
    for name, array in session.export().parameters.items():
        if array.size >= _FEW_ELEMENTS and initial[name].any():
            moved[name] = drop_infinite(compute_relative_error(array, initial[name]))
    return moved


def draw_batches_of_epoch(spec: RunSpec, train: Batch, epoch: int, most: int | None = None) -> list[Batch]:
    """Return the batches of one epoch in their shuffled order. With `most`, return only that many."""
    return draw_epoch_batches(train, seed=spec.seed, epoch=epoch, batch_size=spec.batch_size, most=most)


def _take_steps(session: Session, initial: Arrays, batches: Sequence[Batch], steps: int) -> tuple[Arrays, Arrays]:
    """Return each parameter and buffer as stored at the start, and its change in `steps` steps."""
    session.assign(initial)
    before = _export_arrays(session)
    session.feed(batches)
    session.run(steps)
    return before, {name: array - before[name] for name, array in _export_arrays(session).items()}


def _export_arrays(session: Session) -> Arrays:
    state = session.export()
    return {**state.parameters, **state.buffers}


def _perturb(initial: Arrays, spec: RunSpec, roundoff: float, generation: int) -> Arrays:
    if not generation:
        return initial
    random = np.random.default_rng((spec.seed, generation))
    return {name: weights.perturb(array, roundoff, random) for name, array in initial.items()}


def _train_epochs(session: Session, spec: RunSpec, train: Batch, generation: int) -> Iterator[Array]:
    """Train epoch after epoch and yield the losses [steps] of each."""
    for epoch in range(spec.epochs):
        batches = draw_batches_of_epoch(spec, train, epoch)
        if generation:  # a micro-batch and a device's part stay together, because batch norm sees them together
            random = make_generator("twin", spec.seed, generation, epoch)
            for index, batch in enumerate(batches):
                batches[index] = reorder(batch, spec.accumulate * spec.devices, random)
        session.feed(batches)
        yield _train_steps(session, len(batches))


def _train_steps(session: Session, steps: int) -> Array:
    """Train and return the loss of each step. Read the losses before the session would drop the oldest."""
    most, losses = KEPT_LOSSES // session.steps_per_dispatch * session.steps_per_dispatch, list[Array]()
    while steps:
        count = min(steps, most)
        session.run(count)
        losses.append(session.losses()[-count:])
        steps -= count
    return np.concatenate(losses)


def _measure_accuracy(session: Session, batch: Batch, spec: RunSpec) -> float | None:
    """Return the share of correct labels, or None if the first output has no labels."""
    chosen, size, correct, count = descriptions.read_workload(spec).task, spec.batch_size, 0, 0
    if chosen is not None and chosen.first.loss not in (task.CROSS_ENTROPY, task.BINARY):
        return None
    for start in range(0, len(batch.labels), size):
        labels = batch.labels[start : start + size]
        images = batch.values(slice(start, start + len(labels)))  # the first view of each image, if there are several
        padded = np.concatenate([images, np.zeros((size - len(images), *images.shape[1:]), images.dtype)])
        is_correct = _compare_labels(session.logits(padded)[: len(images)], labels, chosen)
        correct, count = correct + int(is_correct.sum()), count + is_correct.size
    return correct / count


def _compare_labels(logits: Array, labels: Array, chosen: task.Task | None) -> Array:
    """Return for each label whether it is correct. Labels of several outputs are those of the first output."""
    if chosen is None:
        return logits.argmax(-1) == labels
    output, targets = task.unpack_targets(chosen, labels)[0]
    size = math.prod(output.shape or ())
    logits = logits.reshape(len(logits), -1)[:, :size].reshape(len(logits), *(output.shape or ()))
    return logits.argmax(-1) == targets if output.loss == task.CROSS_ENTROPY else (logits > 0) == (targets > 0.5)
