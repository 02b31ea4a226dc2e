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
from compare.data import store
from compare.data.batches import epoch_batches
from compare.interface import Arrays, Backend, RunSpec, Session


def record(backend: Backend, spec: RunSpec, steps: int) -> Arrays:
    """Return the certificate's arrays of one contender, batch-norm scales, biases and statistics randomised."""
    train, test = store.load(spec.data)
    batches = epoch_batches(train, seed=spec.seed, epoch=0, batch_size=spec.batch_size)
    session = backend.open(spec)
    start = weights.randomised(session.signature(), spec.seed)
    session.assign(start)
    arrays: Arrays = {f"initial/{name}": array for name, array in _state(session).items()}
    for step in range(steps):
        internals = session.inspect(batches[step % len(batches)])
        arrays |= {f"step{step + 1}/{key}": array for key, array in internals.items()}
    arrays["evaluation/logits"] = session.logits(test.images[: spec.batch_size])
    session.assign(start)
    session.feed(batches)
    session.run(steps)
    for name, array in _state(session).items():
        arrays[f"delta/{name}"] = array - arrays[f"initial/{name}"]
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
