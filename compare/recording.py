"""What the certificate compares: the arrays of a few training steps and one evaluation, recorded inside a child.

Names, in execution order: `initial/NAME`; for each step s from 1 `step{s}/KEY` with the keys of `Session.inspect`;
`evaluation/logits`; and `delta/NAME`, state after the same steps taken by `Session.run`, the path that is timed,
minus the initial state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

# safetensors' annotations leave the path's type parameter open.
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from compare import descriptions, weights
from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.gates import changes, norm, relative_error
from compare.data import store
from compare.data.batches import epoch_batches
from compare.data.seeding import generator
from compare.interface import Array, Arrays, Backend, Batch, RunSpec, Session

Floor = dict[str, float]
Perturbation = tuple[float, int, int]
"""A relative roundoff, and the numbers of the runs that it is applied in: from the first up to the last, exclusive."""

_LOWER_LOSS_SCALES = (2.0**11, 2.0**6, 2.0)


def record(backend: Backend, spec: RunSpec, steps: int) -> Arrays:
    """Return the certificate's arrays of one contender, batch-norm scales, biases and statistics randomised.

    In float16, a step whose gradients overflow is skipped and could not be compared; the first loss scale is then taken
    lower.
    """
    arrays = _recorded(backend, spec, steps)
    for scale in _LOWER_LOSS_SCALES:
        if spec.precision != "float16" or _gradients_are_finite(arrays):
            break
        arrays = _recorded(backend, replace(spec, loss_scale=scale), steps)
    return arrays


def _recorded(backend: Backend, spec: RunSpec, steps: int) -> Arrays:
    session, start, batches, test = _begin(backend, spec)
    arrays = _taken(session, start, batches, steps)
    arrays["evaluation/logits"] = _evaluated(session, spec, start, test)
    session.assign(start)
    session.feed(batches)
    session.run(steps)
    for name, array in _state(session).items():
        arrays[f"delta/{name}"] = array - arrays[f"initial/{name}"]
    return arrays


def _gradients_are_finite(arrays: Arrays) -> bool:
    return all(np.isfinite(array).all() for name, array in arrays.items() if "/gradient/" in name)


def noise(backend: Backend, spec: RunSpec, steps: int, perturbations: Sequence[Perturbation]) -> list[Floor]:
    """Return by tensor how far rounding the inputs alone moves it, for each perturbation.

    Each run starts from weights and images whose every element is moved by a relative `roundoff`, up or down at
    random as the run's number fixes, and is computed in the precision of `spec` (float64). The floor is the largest of
    |moved - unmoved| / |unmoved| over the runs (Euclidean norms; buffers and parameters as changes from the start).
    """
    session, start, batches, test = _begin(backend, spec)

    def ran(start: Arrays, batches: list[Batch]) -> Arrays:
        arrays = _taken(session, start, batches, steps)
        deltas = {f"delta/{name}": array - arrays[f"initial/{name}"] for name, array in _state(session).items()}
        arrays["evaluation/logits"] = _evaluated(session, spec, start, test)
        return changes(arrays) | deltas

    still = ran(start, batches)
    sizes = {name: norm(array) for name, array in still.items()}
    found = list[Floor]()
    for roundoff, first, end in perturbations:
        floor = dict.fromkeys(still, 0.0)
        for run in range(first, end):
            random = np.random.default_rng((spec.seed, run))
            shifted = {name: weights.perturbed(array, roundoff, random) for name, array in start.items()}
            images = [Batch(weights.perturbed(batch.values(), roundoff, random), batch.labels) for batch in batches]
            for name, value in ran(shifted, images).items():
                floor[name] = max(floor[name], relative_error(value, still[name], sizes[name]))
        found.append(floor)
    return found


def alone(backend: Backend, spec: RunSpec, inputs: Mapping[str, Sequence[int]]) -> Arrays:
    """Return `training/LAYER` and `evaluation/LAYER`, each layer's output on random inputs, nothing else run.

    Weights are randomised; inputs are normal, and in both backends the same.
    """
    session = backend.open(spec)
    session.assign(weights.randomised(session.signature(), spec.seed))
    arrays: Arrays = {}
    for layer, shape in inputs.items():
        given = generator("alone", spec.seed, layer).normal(size=tuple(shape))
        for mode in ("training", "evaluation"):
            arrays[f"{mode}/{layer}"] = session.alone(layer, given, training=mode == "training")
    return arrays


def _begin(backend: Backend, spec: RunSpec) -> tuple[Session, Arrays, list[Batch], Array]:
    train, test = store.load(spec.data)
    batches = epoch_batches(train, seed=spec.seed, epoch=0, batch_size=spec.batch_size)
    session = backend.open(spec)
    shown = test.values(slice(spec.batch_size))
    return session, weights.randomised(session.signature(), spec.seed), batches, shown


def _taken(session: Session, start: Arrays, batches: list[Batch], steps: int) -> Arrays:
    session.assign(start)
    arrays: Arrays = {f"initial/{name}": array for name, array in _state(session).items()}
    for step in range(steps):
        internals = session.inspect(batches[step % len(batches)])
        arrays |= {f"step{step + 1}/{key}": array for key, array in internals.items()}
    return arrays


def _evaluated(session: Session, spec: RunSpec, start: Arrays, test: Array) -> Array:
    """Return the logits after the steps taken, or, where the running variances may differ by then, at the start."""
    if RUNNING_VARIANCE in descriptions.of(spec).model.arguments.get("allow", ()):
        session.assign(start)
    return session.logits(test)


def save(arrays: Arrays, path: Path) -> None:
    """Write arrays to a safetensors file."""
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)


def load(path: Path, names: list[str]) -> Arrays:
    """Read arrays back in the order of `names`."""
    arrays = load_file(path)
    return {name: arrays[name] for name in names}


def _state(session: Session) -> Arrays:
    state = session.export()
    return {**state.parameters, **state.buffers}
