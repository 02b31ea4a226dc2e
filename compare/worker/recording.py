"""Record the arrays that a certificate compares: a few training steps and one evaluation.

The names come in execution order. First comes `initial/NAME`, then `step{s}/KEY` for each step s from 1, with the keys
of `Session.inspect`. The last are `evaluation/logits` and `delta/NAME`. A delta is the change of the state in the same
steps on the timed path, `Session.run`. Its dispatches have no more steps than are recorded.

The steps are the workload's own at the batch size of the certificate. SGD's learning rate is scaled down with the batch
size (the linear scaling rule, Goyal et al. 2017). At the full rate, a small batch throws a deep model
too far. The second step is then chaos, the noise would hide any error, and the third step overflows.
"""

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.gates import SEMANTIC
from compare.agreement.measures import compute_changes, compute_reference_size, compute_relative_error, is_finite
from compare.base import descriptions, protocol, tensors
from compare.base.commands import PruningCheck
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
from compare.data import dataset_file, pruning, weights
from compare.data.seeding import draw_epoch_batches, make_generator

Keep = Callable[[str, Arrays], None]
"""Takes the arrays of a named part. A part that comes again replaces the first one."""

_LOWER_LOSS_SCALES = (2.0**11, 2.0**6, 2.0)


def record(backend: Backend, spec: RunSpec, steps: int, keep: Keep, *, evenly: bool = False) -> list[str]:
    """Record the arrays of one contender and return their names in execution order.

    Batch-norm scales, biases and statistics are random. `keep` takes the arrays part by part, so that they need not fit
    into memory together. With a loss scale, a step is skipped if its gradients overflow. Such a step cannot be
    compared, so everything is recorded again with a lower loss scale. If `evenly`, every dispatch of the timed path
    takes all batches equally often.
    """
    names, finite = _record_once(backend, spec, steps, keep, evenly)
    for scale in _LOWER_LOSS_SCALES:
        if finite or not PRECISIONS[spec.precision].has_loss_scale:
            break
        names, finite = _record_once(backend, replace(spec, loss_scale=scale), steps, keep, evenly)
    return names


def _record_once(backend: Backend, spec: RunSpec, steps: int, keep: Keep, evenly: bool) -> tuple[list[str], bool]:
    """Record the arrays once. Return their names, and whether all gradients are finite."""
    session, initial, batches, test = _prepare(backend, spec, steps)
    names, finite = list[str](), True
    for part, arrays in _inspect_steps(session, initial, batches, steps):
        names += arrays
        finite = finite and all(is_finite(array) for name, array in arrays.items() if "/gradient/" in name)
        keep(part, arrays)
        del arrays  # frees their memory before the next step's arrays are made
    evaluation = {"evaluation/logits": _evaluate(session, spec, initial, test)}
    keep("evaluation", evaluation)
    session.assign(initial)
    before = _export_arrays(session)
    _run_timed_path(session, batches, steps, evenly)
    deltas = {f"delta/{name}": array - before[name] for name, array in _export_arrays(session).items()}
    keep("delta", deltas)
    return [*names, *evaluation, *deltas], finite


def compile_timed_path(backend: Backend, spec: RunSpec, steps: int, *, evenly: bool) -> None:
    """Compile the program with which `record` takes the timed path, and keep nothing but that program."""
    session, initial, batches, _ = _prepare(backend, spec, steps)
    session.assign(initial)
    _run_timed_path(session, batches, steps, evenly)


def measure_noise(backend: Backend, spec: RunSpec, steps: int, perturbations: Sequence[Perturbation]) -> list[Floor]:
    """Return for each perturbation how far rounding of the inputs alone moves every tensor.

    Each perturbed run moves every element of its weights and images by a relative `roundoff`, up or down. The number of
    the run fixes the signs. The precision is that of `spec` (float64). A floor is the largest
    |moved - unmoved| / |unmoved| over the runs, with Euclidean norms. Buffers and parameters count as changes from the
    start, and no size is below the resolution of float64. The unmoved run stays in memory, or in files beside the
    dataset if memory is short.

    Raises:
        Refused: the unmoved run differs when it is repeated after all others. Such a model keeps a state that `assign`
            does not restore, or it draws random numbers. Both would look like rounding and hide errors.
    """
    session, initial, batches, test = _prepare(backend, spec, steps)
    del batches[steps:]

    def inspect_run(initial: Arrays, batches: list[Batch]) -> Iterator[tuple[str, Arrays]]:
        parts = _inspect_steps(session, initial, batches, steps)
        _, before = next(parts)
        for part, arrays in parts:
            arrays = compute_changes({**before, **arrays})
            yield part, arrays
            del arrays
        after = _export_arrays(session)
        yield "delta", {f"delta/{name}": array - before[f"initial/{name}"] for name, array in after.items()}
        yield "evaluation", {"evaluation/logits": _evaluate(session, spec, initial, test)}

    with tempfile.TemporaryDirectory(dir=Path(spec.data).parent) as folder:
        unmoved, sizes = Arrays(), dict[str, float]()
        named_initial = {f"initial/{name}": array for name, array in initial.items()}
        for part, arrays in inspect_run(initial, batches):
            sizes |= {name: compute_reference_size(name, array, named_initial) for name, array in arrays.items()}
            unmoved |= tensors.keep(arrays, Path(folder, part))
            del arrays
        floors = list[Floor]()
        for roundoff, first, end in perturbations:
            floor = dict.fromkeys(sizes, 0.0)  # keeps the execution order, which files do not
            for run in range(first, end):
                random = np.random.default_rng((spec.seed, run))
                moved = {name: weights.perturb(array, roundoff, random) for name, array in initial.items()}
                images = [Batch(weights.perturb(batch.values(), roundoff, random), batch.labels) for batch in batches]
                for _, arrays in inspect_run(moved, images):
                    floor |= {
                        name: max(floor[name], compute_relative_error(array, unmoved[name], sizes[name]))
                        for name, array in arrays.items()
                    }
                    del arrays
            floors.append(floor)
        _check_repeatable(inspect_run(initial, batches), unmoved, sizes)
    return floors


def _check_repeatable(repetition: Iterator[tuple[str, Arrays]], unmoved: Arrays, sizes: Mapping[str, float]) -> None:
    """Check that the first step of a repeated run has the outputs that it had, up to rounding."""
    part, arrays = next(repetition)
    for name, array in arrays.items():
        if name.startswith((f"{part}/activation/", f"{part}/logits", f"{part}/loss")):
            error = compute_relative_error(array, unmoved[name], sizes[name])
            if not error <= SEMANTIC.limit:
                raise Refused(
                    f"the same step from the same start gives another {name} (relative difference {error:.1e}): the "
                    "model keeps a state that is no parameter or buffer, or draws random numbers; allowed: all state "
                    "in parameters and buffers"
                )


def record_layers(backend: Backend, spec: RunSpec, inputs: Mapping[str, Sequence[int]]) -> Arrays:
    """Return `training/LAYER` and `evaluation/LAYER`: the outputs of single layers on random inputs.

    `inputs` are the shapes. Weights are random. The inputs are normal, and the same in both backends. A layer that
    cannot run alone is left out.
    """
    session = backend.open(spec)
    session.assign(_randomise(session, spec))
    arrays: Arrays = {}
    for layer, shape in inputs.items():
        values = make_generator("alone", spec.seed, layer).normal(size=tuple(shape))
        with contextlib.suppress(Refused, RuntimeError, TypeError, ValueError, IndexError):
            arrays |= {
                f"{mode}/{layer}": session.run_layer(layer, values, training=mode == "training")
                for mode in ("training", "evaluation")
            }
    return arrays


def check_pruning(backend: Backend, spec: RunSpec) -> PruningCheck:
    """Compare a pruned model with its full model, in which all removed channels are zero.

    Both take one evaluation and one step's forward pass, from the same random weights. A session that answers requests
    has no loss. The errors are relative, as Euclidean norms.
    """
    session, cut, batches, images = _prepare(backend, spec, 1)
    workload, shapes = descriptions.read_workload(spec), session.signature()
    whole = pruning.full_shapes(workload.model, shapes)
    pruned = _forward(session, cut, batches[0], images)
    values = weights.randomise(whole, spec.seed)
    kept = pruning.choose_channels(workload.model, values)
    unpruned = replace(workload, model=pruning.full(workload.model))
    masked = backend.open(replace(spec, described=descriptions.to_json(unpruned)))
    reference = _forward(masked, pruning.mask(workload.model, values, kept), batches[0], images)
    errors = {name: compute_relative_error(array, reference[name]) for name, array in pruned.items()}
    worst = max(errors, key=lambda name: errors[name] if math.isfinite(errors[name]) else math.inf)
    return PruningCheck(protocol.drop_infinite(errors[worst]), worst)


def _forward(session: Session, initial: Arrays, batch: Batch, images: Array) -> Arrays:
    session.assign(initial)
    evaluation = session.logits(images)
    step = session.inspect(batch)
    return {"evaluation/logits": evaluation, **{name: step[name] for name in ("logits", "loss") if name in step}}


def _prepare(backend: Backend, spec: RunSpec, steps: int) -> tuple[Session, Arrays, list[Batch], Array]:
    """Return a session, its initial weights, its training batches and the images of the evaluation."""
    train, test = dataset_file.load(spec.data)
    batches = draw_epoch_batches(train, seed=spec.seed, epoch=0, batch_size=spec.batch_size, most=steps + 1)
    session = backend.open(_shorten_dispatches(_scale_learning_rate(spec), steps))
    images = test.values(slice(spec.batch_size))
    return session, _randomise(session, spec), batches, images


def _randomise(session: Session, spec: RunSpec) -> Arrays:
    model = descriptions.read_workload(spec).model
    return pruning.fill(model, session.signature(), lambda shapes: weights.randomise(shapes, spec.seed))


def _scale_learning_rate(spec: RunSpec) -> RunSpec:
    """Return the spec with the learning rate for its batch size, if updates grow with the rate (SGD)."""
    workload = descriptions.read_workload(spec)
    slower = workload.optimizer.slowed(min(1.0, spec.batch_size / workload.batch_size))
    return replace(spec, described=descriptions.to_json(replace(workload, optimizer=slower)))


def _shorten_dispatches(spec: RunSpec, steps: int) -> RunSpec:
    """Return the spec with at most `steps` in a dispatch. A longer dispatch would never run, and never be judged."""
    if int(spec.knobs.get("steps-per-dispatch", 1)) <= steps:
        return spec
    return replace(spec, knobs={**spec.knobs, "steps-per-dispatch": steps})


def _run_timed_path(session: Session, batches: Sequence[Batch], steps: int, evenly: bool) -> None:
    """Take the steps of `_inspect_steps` on the path that is timed.

    A timed dispatch that takes all its batches equally often may read them in place. If `evenly`, these dispatches do
    so too. Otherwise there is one batch more than steps, so that no dispatch takes all batches.
    """
    cycle = [batches[step % len(batches)] for step in range(steps + 1)]
    if not evenly:
        session.feed(cycle)
        session.run(steps)
        return
    for first in range(0, steps, session.steps_per_dispatch):
        dispatch = cycle[first : min(first + session.steps_per_dispatch, steps)]
        session.feed(dispatch)
        session.run(len(dispatch))


def _inspect_steps(session: Session, initial: Arrays, batches: list[Batch], steps: int) -> Iterator[tuple[str, Arrays]]:
    """Yield the initial state and then the internals of every step, each with the name of its part."""
    session.assign(initial)
    yield "initial", {f"initial/{name}": array for name, array in _export_arrays(session).items()}
    for step in range(steps):
        part = f"step{step + 1}"
        yield part, {f"{part}/{key}": array for key, array in session.inspect(batches[step % len(batches)]).items()}


def _evaluate(session: Session, spec: RunSpec, initial: Arrays, images: Array) -> Array:
    """Return the logits after the steps, or at the start if the running variances may differ after the steps."""
    if RUNNING_VARIANCE in descriptions.read_workload(spec).model.arguments.get("allow", ()):
        session.assign(initial)
    return session.logits(images)


def _export_arrays(session: Session) -> Arrays:
    state = session.export()
    return {**state.parameters, **state.buffers}
