"""What the certificate compares: the arrays of a few training steps and one evaluation, recorded inside a child.

Names, in execution order: `initial/NAME`; for each step s from 1 `step{s}/KEY` with the keys of `Session.inspect`;
`evaluation/logits`; and `delta/NAME`, state after the same steps taken by `Session.run`, the path that is timed,
minus the initial state. A dispatch takes at most that many, so that it is taken; where that of the timed run takes all
its batches equally often, and may read them in place, this one does, too (`evenly`).

The steps are the workload's at the batch that is recorded: the learning rate of SGD is as much lower as the batch is
smaller than the workload's own (the linear scaling rule, Goyal et al. 2017). At the whole rate a few images throw deep
models so far that the second step is chaos, whose noise would forgive any error, and the third one overflows.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.gates import SEMANTIC
from compare.agreement.measures import compute_changes, is_finite, reference_size, relative_error
from compare.base import descriptions, tensors
from compare.base.interface import (
    Array,
    Arrays,
    Backend,
    Batch,
    Refused,
    RunSpec,
    Session,
)
from compare.base.precisions import PRECISIONS
from compare.base.records import Floor, Perturbation
from compare.data import dataset_file, weights
from compare.data.seeding import epoch_batches, generator

Keep = Callable[[str, Arrays], None]
"""Takes a part of what is recorded, by name; a part given again takes the place of the first."""

_LOWER_LOSS_SCALES = (2.0**11, 2.0**6, 2.0)


def record(backend: Backend, spec: RunSpec, steps: int, keep: Keep, *, evenly: bool = False) -> list[str]:
    """Record the certificate's arrays of one contender, batch-norm scales, biases and statistics randomised.

    `keep` is given them part by part, so that they need not fit into memory together. Where the loss is scaled, a step whose
    gradients overflow is skipped and could not be compared; the first loss scale is then taken lower, and `keep` is
    given every part anew. If `evenly`, every dispatch of the path that is timed takes all batches equally often.
    Returns the names of all arrays, in execution order.
    """
    names, finite = _recorded(backend, spec, steps, keep, evenly)
    for scale in _LOWER_LOSS_SCALES:
        if finite or not PRECISIONS[spec.precision].has_loss_scale:
            break
        names, finite = _recorded(backend, replace(spec, loss_scale=scale), steps, keep, evenly)
    return names


def _recorded(backend: Backend, spec: RunSpec, steps: int, keep: Keep, evenly: bool) -> tuple[list[str], bool]:
    """Record them once; return their names, and whether all gradients are finite."""
    session, start, batches, test = _begin(backend, spec, steps)
    names, finite = list[str](), True
    for part, arrays in _taken(session, start, batches, steps):
        names += arrays
        finite = finite and all(is_finite(array) for name, array in arrays.items() if "/gradient/" in name)
        keep(part, arrays)
        del arrays  # they are gone before the next step's are there
    evaluated = {"evaluation/logits": _evaluated(session, spec, start, test)}
    keep("evaluation", evaluated)
    session.assign(start)
    before = _state(session)
    _run(session, batches, steps, evenly)
    moved = {f"delta/{name}": array - before[name] for name, array in _state(session).items()}
    keep("delta", moved)
    return [*names, *evaluated, *moved], finite


def noise(backend: Backend, spec: RunSpec, steps: int, perturbations: Sequence[Perturbation]) -> list[Floor]:
    """Return by tensor how far rounding the inputs alone moves it, for each perturbation.

    Each run starts from weights and images whose every element is moved by a relative `roundoff`, up or down at
    random as the run's number fixes, and is computed in the precision of `spec` (float64). The floor is the largest of
    |moved - unmoved| / |unmoved| over the runs (Euclidean norms; buffers and parameters as changes from the start, none
    taken for less than float64 resolves of them).
    The unmoved run is kept until this returns, in files beside the dataset where memory is short.

    Raises:
        Refused: the unmoved run, taken again after all others, is another: the model keeps a state that no `assign`
            brings back, or draws chance, which would pass for rounding and forgive as much.
    """
    session, start, batches, test = _begin(backend, spec, steps)
    del batches[steps:]

    def ran(start: Arrays, batches: list[Batch]) -> Iterator[tuple[str, Arrays]]:
        taken = _taken(session, start, batches, steps)
        _, before = next(taken)
        for part, arrays in taken:
            arrays = compute_changes({**before, **arrays})
            yield part, arrays
            del arrays
        yield "delta", {f"delta/{name}": array - before[f"initial/{name}"] for name, array in _state(session).items()}
        yield "evaluation", {"evaluation/logits": _evaluated(session, spec, start, test)}

    with tempfile.TemporaryDirectory(dir=Path(spec.data).parent) as folder:
        still, sizes = Arrays(), dict[str, float]()
        initial = {f"initial/{name}": array for name, array in start.items()}
        for part, arrays in ran(start, batches):
            sizes |= {name: reference_size(name, array, initial) for name, array in arrays.items()}
            still |= tensors.kept(arrays, Path(folder, part))
            del arrays
        found = list[Floor]()
        for roundoff, first, end in perturbations:
            floor = dict.fromkeys(sizes, 0.0)  # in execution order; files are in their own
            for run in range(first, end):
                random = np.random.default_rng((spec.seed, run))
                shifted = {name: weights.perturb(array, roundoff, random) for name, array in start.items()}
                images = [Batch(weights.perturb(each.values(), roundoff, random), each.labels) for each in batches]
                for _, arrays in ran(shifted, images):
                    floor |= {
                        name: max(floor[name], relative_error(array, still[name], sizes[name]))
                        for name, array in arrays.items()
                    }
                    del arrays
            found.append(floor)
        _check_repeated(ran(start, batches), still, sizes)
    return found


def _check_repeated(again: Iterator[tuple[str, Arrays]], still: Arrays, sizes: Mapping[str, float]) -> None:
    """Check that the first step of a run, taken again, has the outputs that it had: rounding alone moves them less."""
    part, arrays = next(again)
    for name, array in arrays.items():
        if name.startswith((f"{part}/activation/", f"{part}/logits", f"{part}/loss")):
            error = relative_error(array, still[name], sizes[name])
            if not error <= SEMANTIC.limit:
                raise Refused(
                    f"the same step from the same start gives another {name} (relative difference {error:.1e}): the "
                    "model keeps a state that is no parameter or buffer, or draws chance; allowed: all of its state in "
                    "parameters and buffers"
                )


def record_layers(backend: Backend, spec: RunSpec, inputs: Mapping[str, Sequence[int]]) -> Arrays:
    """Return `training/LAYER` and `evaluation/LAYER`, each layer's output on random inputs, nothing else run.

    Weights are randomised; inputs are normal, and in both backends the same.
    """
    session = backend.open(spec)
    session.assign(weights.randomise(session.signature(), spec.seed))
    arrays: Arrays = {}
    for layer, shape in inputs.items():
        given = generator("alone", spec.seed, layer).normal(size=tuple(shape))
        for mode in ("training", "evaluation"):
            arrays[f"{mode}/{layer}"] = session.run_layer(layer, given, training=mode == "training")
    return arrays


def _begin(backend: Backend, spec: RunSpec, steps: int) -> tuple[Session, Arrays, list[Batch], Array]:
    train, test = dataset_file.load(spec.data)
    batches = epoch_batches(train, seed=spec.seed, epoch=0, batch_size=spec.batch_size, most=steps + 1)
    session = backend.open(_within(_at_its_rate(spec), steps))
    shown = test.values(slice(spec.batch_size))
    return session, weights.randomise(session.signature(), spec.seed), batches, shown


def _at_its_rate(spec: RunSpec) -> RunSpec:
    """Return the spec with the learning rate that its batch size asks for, if the update grows with the rate (SGD)."""
    workload = descriptions.of(spec)
    slower = workload.optimizer.slowed(min(1.0, spec.batch_size / workload.batch_size))
    return replace(spec, described=descriptions.to_json(replace(workload, optimizer=slower)))


def _within(spec: RunSpec, steps: int) -> RunSpec:
    """Return the spec with dispatches of so many steps at most: a longer one would never be taken, nor judged."""
    if spec.knobs.get("steps-per-dispatch", 1) <= steps:
        return spec
    return replace(spec, knobs={**spec.knobs, "steps-per-dispatch": steps})


def _run(session: Session, batches: Sequence[Batch], steps: int, evenly: bool) -> None:
    """Take the steps of `_taken`, on the path that is timed."""
    cycle = [batches[step % len(batches)] for step in range(steps + 1)]
    if not evenly:
        session.feed(cycle)  # one more than there are steps, so that no dispatch takes all
        session.run(steps)
        return
    for first in range(0, steps, session.steps_per_dispatch):
        dispatched = cycle[first : min(first + session.steps_per_dispatch, steps)]
        session.feed(dispatched)
        session.run(len(dispatched))


def _taken(session: Session, start: Arrays, batches: list[Batch], steps: int) -> Iterator[tuple[str, Arrays]]:
    """Yield the initial state, then every step's internals as it is taken, each with the name of that part."""
    session.assign(start)
    yield "initial", {f"initial/{name}": array for name, array in _state(session).items()}
    for step in range(steps):
        part = f"step{step + 1}"
        yield part, {f"{part}/{key}": array for key, array in session.inspect(batches[step % len(batches)]).items()}


def _evaluated(session: Session, spec: RunSpec, start: Arrays, test: Array) -> Array:
    """Return the logits after the steps taken, or, where the running variances may differ by then, at the start."""
    if RUNNING_VARIANCE in descriptions.of(spec).model.arguments.get("allow", ()):
        session.assign(start)
    return session.logits(test)


def _state(session: Session) -> Arrays:
    state = session.export()
    return {**state.parameters, **state.buffers}
