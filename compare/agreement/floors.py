"""What rounding may do to a tensor: units of roundoff, noise that was measured, and the floors that follow from it."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from compare.agreement.gates import PRECISION, SEMANTIC
from compare.agreement.measures import ROUNDOFF32, ROUNDOFF64, coarseness, measure_by_name, norm, sort_by_execution
from compare.base import chunks
from compare.base.interface import Arrays
from compare.base.precisions import PRECISIONS

ULP64 = PRECISIONS["float64"].ulp

# Kinds of tensors that belong to a parameter, and those that are sums over all pixels of a layer's output.
_OF_PARAMETERS = ("gradient", "update")
_OVER_PIXELS = (*_OF_PARAMETERS, "buffer")
# An error this many times what one ulp of the inputs does is rounding: the precision gate's own measure.
_ROUNDING = 10.0
_LOST = 4.0
# The precision gate allows ten floors; of what a sum in sequence loses it is to allow twice as much,
_OF_A_SUM = 2.0 / PRECISION.limit
# and of one whose addends are alike, all that it loses where every sum is rounded the same way, by half a unit.
_OF_ALIKE = 0.25 / PRECISION.limit
# An error of half the tensor, and two and a half times the other side's, is that side's own, whatever the noise. The
# logarithm of the ratio of two errors of n independent elements scatters by 1 / sqrt(n): four of these more.
_OWNED, _TIMES_THE_OTHER, _SCATTER = 0.5 / PRECISION.limit, 2.5 / PRECISION.limit, 4.0


@dataclass(frozen=True)
class Noise:
    """By tensor, how far rounding the inputs moves it, relatively, float64 (`compare.worker.recording.measure_noise`).

    Attributes:
        ulp: at one ulp of float64. Most tensors move by about as much. One that cancels moves by far more, and cannot
            be known better: a bias before batch norm, say, whose gradient is zero but for rounding.
        roundoff: at the timed precision's unit roundoff; None where that is float64.
    """

    ulp: Mapping[str, float]
    roundoff: Mapping[str, float] | None = None

    def resolve(self, errors: Mapping[str, float], record: Arrays) -> dict[str, float]:
        """Return errors, divided by how much worse a tensor is resolved than the semantic gate asks for.

        It is resolved to its noise times the square root of the number of layers, as in `compute`, and a change of a stored
        tensor of `record` (the baseline's, in float64) to what storage resolves of it: one element rounded the other
        way may be more of a small change than the gate allows, and is chance, which the few runs of noise may not meet.
        """
        least, depth, ulp = SEMANTIC.limit / _ROUNDING, _depth(errors), _of_gradients(self.ulp)
        times = measure_by_name(
            errors,
            lambda name: max(1.0, depth * ulp.get(name, 0.0) / least, ROUNDOFF64 * coarseness(name, record) / least),
            record,
        )
        return {name: 0.0 if math.isinf(times[name]) else error / times[name] for name, error in errors.items()}


def compute(
    sides: Sequence[Mapping[str, float]], record: Arrays, precision: str, noise: Noise, *, normalised: bool
) -> dict[str, float]:
    """Return the floor of every tensor that has one: rounding at `precision` may move it ten times as far, relatively.

    A tensor that is zero, and no longer where inputs are rounded, has none: behind a ReLU that opens then alone.

    `sides` are both sides' errors by tensor, `record` is the baseline's in float64.

    The floor of a tensor is its noise (`compare.worker.recording.measure_noise`) times the square root of the number
    of layers, or what float32 storage resolves of it, or what a float32 sum loses, whichever is larger. It comes
    from rounding the inputs once; every layer rounds its output once more, and independent errors add in quadrature
    (Higham 2002, section 2.8). A kernel may add up n terms one after the other, whatever the precision of its
    inputs: in float32 the rounded partial sums are off by the square root of n / 2 units of roundoff together
    (Higham and Mary 2019). A bias's gradient is a sum over pixels that may be all alike, behind a mean over them
    for instance, and is then rounded the same way n times: its error is proportional to n and to the sum of
    absolute values (Higham 2002, section 4.2), which is at most the square root of n times what the noise is of.
    torch's convolutions on a CPU lose that much. Where a tensor cancels, a bias before batch norm for instance, the
    noise is that of float64's own rounding, scaled to the precision, if that is larger. Gradients of a layer that
    computes in bfloat16 or float16 are rounded to that when they are stored, as torch.autocast casts its
    parameters, whatever the noise: a loss that is all but certain has none. An update may besides be off in the
    elements whose gradient is lost in noise, by a full step each if the optimizer divides by the gradient's size
    (`normalised`: Adam, AdamW); all later steps start from parameters that are off by as much. The state after the
    whole run (`delta/`), which comes by the path that is timed, may be off by what all updates may be off by
    together.

    Deep models lose gradients in noise at half precision, and their floors would forgive one that is all zero. So no
    floor of a first gradient, or of the state after the run, forgives an error of half the tensor that is two and
    a half times the other side's, more where a tensor has few elements, unless the tensor cancels.

    Raises:
        ValueError: `noise` has none for this precision.
    """
    if noise.roundoff is None:
        raise ValueError(f"no noise was measured for {precision}")
    every = list(noise.roundoff)
    names = [name for name in every if not name.startswith("delta/")]
    depth, ulp = _depth(names), _of_gradients(noise.ulp)
    unit = PRECISIONS[precision].roundoff
    scale, of_sums = unit / ULP64, _OF_A_SUM * ROUNDOFF32 / unit
    terms = _terms(record)
    added = {name: terms.get(_layer(name, _OVER_PIXELS), terms[""]) for name in names}
    stored = measure_by_name(every, lambda name: ROUNDOFF32 * coarseness(name, record), record)
    noisy = {name: max(noise.roundoff[name], ulp[name] * scale) for name in every}
    floor = {name: max(max(depth, of_sums * math.sqrt(added[name] / 2)) * noisy[name], stored[name]) for name in names}
    for name in names:
        if _layer(name) and name.endswith(".bias"):
            alike = terms.get(_layer(name), 1) ** 1.5 * ROUNDOFF32 / unit
            floor[name] = max(floor[name], _OF_ALIKE * alike * noise.roundoff[name])
    if PRECISIONS[precision].is_mixed:
        for name in names:
            if f"initial/{_layer(name)}.kernel" in record:
                floor[name] = max(floor[name], unit)
    _add_undecided(floor, record, normalised)
    stages = _stages(name for name in names if name.startswith("step"))
    for name in (each for each in every if each.startswith("delta/")):
        of_run = _of_run(name, stages, floor, record, stored[name])
        floor[name] = max(depth * noisy[name], of_run)
    for name in every:
        if name.startswith(("step1/gradient/", "delta/")) and ulp[name] * scale < 1:
            times = _TIMES_THE_OTHER * math.exp(_SCATTER / math.sqrt(max(1, record[name].size)))
            floor[name] = min(floor[name], max(_OWNED, times * min(side[name] for side in sides)))
    return {name: value for name, value in floor.items() if math.isfinite(value)}


def _of_run(name: str, stages: Sequence[str], floor: Mapping[str, float], record: Arrays, stored: float) -> float:
    """Return what the floors of a whole run's steps allow of its end: a parameter's change, or a buffer's.

    It is `stored` at least.
    """
    leaf = name.removeprefix("delta/")
    if (buffer := f"{stages[-1]}/buffer/{leaf}") in floor:
        return floor[buffer]
    updates = [each for stage in stages if (each := f"{stage}/update/{leaf}") in floor]
    allowed = sum(floor[each] * size for each in updates if (size := norm(record[each])))
    moved = norm(record[name])
    return max(allowed / moved if moved else 1.0, stored)


def _add_undecided(floor: dict[str, float], record: Arrays, normalised: bool) -> None:
    """Add to the floors what updates may be off by, and, in later steps, what the parameters then are.

    A parameter is off by that part of its own norm, and what is computed from it by about as much.
    """
    drift, depth = 0.0, _depth(floor)
    for names in ([name for name in floor if name.startswith(f"{stage}/")] for stage in _stages(floor)):
        for name in names:
            floor[name] += depth * drift / PRECISION.limit
        updates = [name for name in names if "/update/" in name]
        undecided = measure_by_name(updates, partial(_undecided, floor, record, normalised), record)
        for name in updates:
            floor[name] += undecided[name] / PRECISION.limit
        if normalised:
            sizes = measure_by_name(updates, partial(_part_of_parameter, record), record)
            drift += max((undecided[name] * sizes[name] for name in updates), default=0.0)


def _part_of_parameter(record: Arrays, name: str) -> float:
    """Return an update's norm over its parameter's, 0 where that is zero."""
    whole = norm(record[f"initial/{name.partition('/update/')[2]}"])
    return norm(record[name]) / whole if whole else 0.0


def _undecided(floor: Mapping[str, float], record: Arrays, normalised: bool, name: str) -> float:
    """Return how far an update may be off because elements of its gradient are lost in noise, relatively.

    A rule that divides by the gradient's size, as Adam does, moves such an element by a full step one way or the other,
    so it may be off by twice its part of the update; one that does not moves it as little as it counts. That full step
    is the largest in the tensor where the rule is known (`normalised`): a gradient of exactly zero, behind a ReLU that
    never opens, moves nothing in float64, but a kernel that leaves a trace of rounding there moves it all the same.
    Lost is what is less than four standard deviations of the error that the gradient may have, taken as equal in all
    elements; parts are of the Euclidean norm.
    """
    of_gradient = name.replace("/update/", "/gradient/")
    update, gradient = record[name], record[of_gradient]
    whole, moved = norm(gradient), norm(update)
    if not whole or not moved:
        return 0.0
    least = _LOST * PRECISION.limit * floor[of_gradient] * whole / math.sqrt(gradient.size)
    step = max(update.max(), -update.min()) if normalised else None
    lost_step = lost_gradient = 0.0
    for steps, slopes in chunks.of(update, gradient):
        lost = np.abs(slopes) < least
        lost_gradient = math.hypot(lost_gradient, norm(slopes[lost]))
        lost_step = math.hypot(lost_step, norm(steps[lost]) if step is None else step * math.sqrt(lost.sum()))
    return max(0.0, 2 * (lost_step / moved - lost_gradient / whole))


def _of_gradients(noise: Mapping[str, float]) -> dict[str, float]:
    """Return noise by tensor, that of a parameter's change being at least that of its gradient.

    Where a gradient is zero but for rounding, weight decay may hide its noise in what is stored after one step.
    """
    gradients: dict[str, float] = {}
    for name, value in noise.items():
        _, is_gradient, parameter = name.partition("/gradient/")
        if is_gradient:
            gradients[parameter] = max(value, gradients.get(parameter, 0.0))

    def of_gradient(name: str) -> float:
        return gradients.get(name.partition("/update/")[2] or name.removeprefix("delta/"), 0.0)

    return {name: max(value, of_gradient(name)) for name, value in noise.items()}


def _terms(record: Arrays) -> dict[str, int]:
    """Return of how many terms the longest sum behind a layer's gradients is, and as "" that behind all others.

    An output sums over its kernel, a parameter's gradient and a batch norm's statistics over all pixels of the layer's
    output.
    """
    kernels = [array for name, array in record.items() if name.startswith("initial/") and name.endswith(".kernel")]
    forward = max((array.size // array.shape[-1] for array in kernels), default=1)
    outputs = {name.rpartition("/")[2]: array for name, array in record.items() if name.startswith("step1/activation/")}
    return {"": forward} | {layer: max(forward, array.size // array.shape[-1]) for layer, array in outputs.items()}


def _stages(names: Iterable[str]) -> list[str]:
    """Return the stages that tensors are of, the steps and the evaluation, in execution order."""
    return list(dict.fromkeys(name.partition("/")[0] for name in sort_by_execution(list(names))))


def _layer(name: str, kinds: Collection[str] = _OF_PARAMETERS) -> str:
    """Return the layer of a tensor of one of these kinds, "" for others."""
    return name.rpartition("/")[2].rpartition(".")[0] if any(f"/{kind}/" in name for kind in kinds) else ""


def _depth(names: Iterable[str]) -> float:
    """Return the square root of the number of layers."""
    return math.sqrt(max(1, sum(name.startswith("step1/activation/") for name in names)))
