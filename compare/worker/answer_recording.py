"""Record the arrays that a certificate of requests compares: activations and logits of evaluation-mode passes.

The names come in execution order. First comes `initial/NAME`. `step1/activation/LAYER` and `step1/logits` are of one
batch, by a program that also returns every layer's output. `evaluation/batch-N` are the logits of each batch size that
is timed, on the timed path: `Session.run` of the program that answers it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from compare.agreement.measures import compute_reference_size, compute_relative_error
from compare.base.interface import Arrays, Backend, Batch, RunSpec
from compare.base.records import Floor, Perturbation
from compare.base.requests import InferenceSession
from compare.data import dataset_file, weights
from compare.data.seeding import draw_epoch_batches
from compare.worker.recording import Keep

_ACTIVATIONS = "step1"


def record(backend: Backend, spec: RunSpec, batch_sizes: Sequence[int], keep: Keep) -> list[str]:
    """Record the arrays of one contender and return their names in execution order.

    Batch-norm scales, biases and statistics are random. `keep` takes the arrays part by part.
    """
    session, initial = _open(backend, spec)
    parts = {
        "initial": {f"initial/{name}": array for name, array in initial.items()},
        _ACTIVATIONS: _inspect(session, _draw_batches(spec, spec.batch_size)[0]),
        "evaluation": {name: _answer(session, spec, size) for size, name in _name_answers(batch_sizes).items()},
    }
    names = list[str]()
    for part, arrays in parts.items():
        names += arrays
        keep(part, arrays)
    return names


def measure_noise(
    backend: Backend, spec: RunSpec, batch_sizes: Sequence[int], perturbations: Sequence[Perturbation]
) -> list[Floor]:
    """Return for each perturbation how far rounding of weights and images alone moves every tensor.

    It is measured as in `compare.worker.recording.measure_noise`. Logits of the timed batch sizes have the noise of the
    recorded batch's.
    """
    session, initial = _open(backend, spec)
    batch = _draw_batches(spec, spec.batch_size)[0]
    unmoved = _inspect(session, batch)
    sizes = {name: compute_reference_size(name, array, {}) for name, array in unmoved.items()}
    floors = list[Floor]()
    for roundoff, first, end in perturbations:
        floor = dict.fromkeys(unmoved, 0.0)
        for run in range(first, end):
            random = np.random.default_rng((spec.seed, run))
            session.assign({name: weights.perturb(array, roundoff, random) for name, array in initial.items()})
            moved = _inspect(session, Batch(weights.perturb(batch.values(), roundoff, random), batch.labels))
            floor |= {
                name: max(floor[name], compute_relative_error(array, unmoved[name], sizes[name]))
                for name, array in moved.items()
            }
        floors.append(floor | dict.fromkeys(_name_answers(batch_sizes).values(), floor[f"{_ACTIVATIONS}/logits"]))
    return floors


def _open(backend: Backend, spec: RunSpec) -> tuple[InferenceSession, Arrays]:
    """Return a session and its weights. Its programs are those of the timed path, in the precision of the spec."""
    session = cast(InferenceSession, backend.open(replace(spec, devices=1)))
    initial = weights.randomise(session.signature(), spec.seed)
    session.assign(initial)
    return session, initial


def _draw_batches(spec: RunSpec, size: int) -> list[Batch]:
    train, _ = dataset_file.load(spec.data)
    return draw_epoch_batches(train, seed=spec.seed, epoch=0, batch_size=min(size, len(train.labels)), most=1)


def _inspect(session: InferenceSession, batch: Batch) -> Arrays:
    return {f"{_ACTIVATIONS}/{name}": array for name, array in session.inspect(batch).items()}


def _answer(session: InferenceSession, spec: RunSpec, size: int) -> np.ndarray:
    """Return the logits of one request on the timed path."""
    session.feed(_draw_batches(spec, size))
    session.run(1)
    session.wait()
    return session.answers()[-1]


def _name_answers(batch_sizes: Sequence[int]) -> dict[int, str]:
    return {size: f"evaluation/batch-{size}" for size in batch_sizes}
