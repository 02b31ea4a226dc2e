"""What the certificate compares: the arrays of a few training steps and one evaluation, recorded inside a child.

Names, in execution order: `initial/NAME`; for each step s from 1 `step{s}/KEY` with the keys of `Session.inspect`;
`evaluation/logits`; and `delta/NAME`, state after the same steps taken by `Session.run`, the path that is timed,
minus the initial state.
"""

from pathlib import Path

import numpy as np

# safetensors' annotations leave the path's type parameter open.
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from compare import weights
from compare.agreement.gates import changes, relative_error
from compare.data import store
from compare.data.batches import epoch_batches
from compare.interface import Array, Arrays, Backend, Batch, RunSpec, Session


def record(backend: Backend, spec: RunSpec, steps: int) -> Arrays:
    """Return the certificate's arrays of one contender, batch-norm scales, biases and statistics randomised."""
    session, start, batches, test = _begin(backend, spec)
    arrays = _taken(session, start, batches, steps)
    arrays["evaluation/logits"] = session.logits(test)
    session.assign(start)
    session.feed(batches)
    session.run(steps)
    for name, array in _state(session).items():
        arrays[f"delta/{name}"] = array - arrays[f"initial/{name}"]
    return arrays


def noise(backend: Backend, spec: RunSpec, steps: int, roundoff: float, runs: int) -> dict[str, float]:
    """Return by tensor how far rounding the inputs alone moves it: the noise floor of one precision.

    Each run starts from weights and images whose every element is moved by a relative `roundoff`, up or down at
    random, and is computed in the precision of `spec` (float64). The floor is the largest of |moved - unmoved| /
    |unmoved| over the runs (Euclidean norms; buffers and parameters as changes from the start).
    """
    session, start, batches, test = _begin(backend, spec)
    generator = np.random.default_rng(spec.seed)

    def moved(array: Array) -> Array:
        return array * (1 + roundoff * generator.choice((-1.0, 1.0), array.shape))

    still = _taken(session, start, batches, steps) | {"evaluation/logits": session.logits(test)}
    floors = dict.fromkeys(changes(still), 0.0)
    for _ in range(runs):
        shifted = {name: moved(array) for name, array in start.items()}
        images = [Batch(moved(batch.images.astype(np.float64)), batch.labels) for batch in batches]
        run = _taken(session, shifted, images, steps) | {"evaluation/logits": session.logits(test)}
        for (name, reference), value in zip(changes(still).items(), changes(run).values(), strict=True):
            floors[name] = max(floors[name], relative_error(value, reference))
    return floors


def _begin(backend: Backend, spec: RunSpec) -> tuple[Session, Arrays, list[Batch], Array]:
    train, test = store.load(spec.data)
    batches = epoch_batches(train, seed=spec.seed, epoch=0, batch_size=spec.batch_size)
    session = backend.open(spec)
    return session, weights.randomised(session.signature(), spec.seed), batches, test.images[: spec.batch_size]


def _taken(session: Session, start: Arrays, batches: list[Batch], steps: int) -> Arrays:
    session.assign(start)
    arrays: Arrays = {f"initial/{name}": array for name, array in _state(session).items()}
    for step in range(steps):
        internals = session.inspect(batches[step % len(batches)])
        arrays |= {f"step{step + 1}/{key}": array for key, array in internals.items()}
    return arrays


def save(arrays: Arrays, path: Path) -> None:
    """Write arrays to a safetensors file."""
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def load(path: Path, names: list[str]) -> Arrays:
    """Read arrays back in the order of `names`."""
    arrays = load_file(path)
    return {name: arrays[name] for name in names}


def _state(session: Session) -> Arrays:
    state = session.export()
    return {**state.parameters, **state.buffers}
