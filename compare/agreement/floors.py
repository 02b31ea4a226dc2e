"""Noise floors: how far rounding may move a tensor, derived from measured noise."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from compare.agreement.gates import PRECISION, SEMANTIC
from compare.agreement.measures import (
    ROUNDOFF32,
    ROUNDOFF64,
    compute_coarseness,
    compute_norm,
    measure_by_name,
    sort_by_execution,
)
from compare.base import chunks
from compare.base.interface import Arrays
from compare.base.precisions import PRECISIONS

ULP64 = PRECISIONS["float64"].ulp

# Kinds of tensors that belong to a parameter. These, and buffers, are sums over all pixels of a layer's output.
_OF_PARAMETERS = ("gradient", "update")
_OVER_PIXELS = (*_OF_PARAMETERS, "buffer")
# An error up to this many times the effect of one ulp of the inputs is rounding, as in the precision gate.
_ROUNDING = 10.0
_LOST = 4.0
# The precision gate allows ten floors. It shall allow twice the error of a sum in sequence,
_OF_A_SUM = 2.0 / PRECISION.limit
# and the whole error of a sum of equal addends, in which every addition is rounded the same way, by half a unit.
_OF_ALIKE = 0.25 / PRECISION.limit
# An error of half the tensor and of two and a half times the other side's belongs to that side, whatever the noise. The
# logarithm of the ratio of two errors of n independent elements scatters by 1 / sqrt(n). Four of these come on top.
_OWNED, _TIMES_THE_OTHER, _SCATTER = 0.5 / PRECISION.limit, 2.5 / PRECISION.limit, 4.0


@dataclass(frozen=True)
class Noise:
    """How far rounding the inputs moves each tensor in float64, relatively (`compare.worker.recording.measure_noise`).

    Attributes:
        ulp: for a change of one ulp of float64. Most tensors move by about one ulp. A tensor that cancels moves by far
            more. One is the gradient of a bias before batch norm, which is zero but for rounding.
        roundoff: for a change of the timed precision's unit roundoff. None if that precision is float64.
    """

    ulp: Mapping[str, float]
    roundoff: Mapping[str, float] | None = None

    def only(self, names: Collection[str]) -> "Noise":
        """Return the noise of these tensors."""
        ulp, roundoff = (
            None if floor is None else {name: value for name, value in floor.items() if name in names}
            for floor in (self.ulp, self.roundoff)
        )
        return Noise(ulp or {}, roundoff)

    def resolve(self, errors: Mapping[str, float], record: Arrays) -> dict[str, float]:
        """Return errors, reduced for tensors that float64 resolves worse than the semantic gate asks for.

        A tensor is resolved to its noise times the square root of the number of layers. A change of a stored tensor is
        also resolved no better than its storage. If one element rounds the other way, a small change may already exceed
        the gate. That is chance, and the few runs of noise may not meet it.

        `record` is the baseline's in float64.
        """
        least, depth, ulp = SEMANTIC.limit / _ROUNDING, _depth(errors), _of_gradients(self.ulp)
        times = measure_by_name(
            errors,
            lambda name: max(
                1.0, depth * ulp.get(name, 0.0) / least, ROUNDOFF64 * compute_coarseness(name, record) / least
            ),
            record,
        )
        return {name: 0.0 if math.isinf(times[name]) else error / times[name] for name, error in errors.items()}


def compute(
    sides: Sequence[Mapping[str, float]], record: Arrays, precision: str, noise: Noise, *, normalised: bool
) -> dict[str, float]:
    """Return the noise floor of every tensor: how far rounding at `precision` may move it, relatively.

    The precision gate allows an error of ten floors. A tensor has no floor if it is zero in float64 and not zero once
    the inputs are rounded. A ReLU that opens only then makes such tensors.

    A floor is the largest of these parts:

    1. The tensor's noise (`compare.worker.recording.measure_noise`) times the square root of the number of layers. The
       noise comes from rounding the inputs once. Every layer rounds its output once more, and independent errors add in
       quadrature (Higham 2002, section 2.8).
    2. The resolution of float32 storage.
    3. The error of a float32 sum. A kernel may add n terms one after the other. The rounded partial sums are then off
       by the square root of n / 2 units of roundoff together (Higham and Mary 2019).
    4. The error of a bias's gradient. It is a sum over pixels that may be all alike, for instance behind a mean. Each
       addition is then rounded the same way. The error is proportional to n and to the sum of absolute values (Higham
       2002, section 4.2), which is at most the square root of n times the base of the noise. torch's convolutions on a
       CPU lose that much.
    5. Float64's own rounding, scaled to the precision. It counts for tensors that cancel, such as the gradient of a
       bias before batch norm.
    6. One roundoff, for gradients of a layer that computes in bfloat16 or float16. They are rounded when they are
       stored, as torch.autocast casts its parameters, even if a loss that is all but certain has no noise.

    Updates may be off further, by a full step in each element whose gradient is lost in noise, if the optimizer divides
    by the gradient's size. All later steps then start from parameters that are off by as much. The state after the
    whole run (`delta/`) may be off by as much as all updates together.

    Deep models lose gradients in noise at half precision, and their floors would forgive a gradient of zero. So a cap
    holds for first gradients and for the state after the run, unless the tensor cancels. No floor forgives an error of
    half the tensor that is two and a half times the other side's. Tensors of few elements need a larger factor.

    Args:
        sides: both sides' errors by tensor.
        record: the baseline's record in float64.
        precision: the timed precision.
        noise: how far rounding the inputs moves each tensor.
        normalised: whether the optimizer divides by the gradient's size, as Adam and AdamW do.

    Raises:
        ValueError: `noise` holds nothing for this precision.
    """
    if noise.roundoff is None:
        raise ValueError(f"no noise was measured for {precision}")
    every = list(noise.roundoff)
    names = [name for name in every if not name.startswith("delta/")]
    ulp, scale = _of_gradients(noise.ulp), PRECISIONS[precision].roundoff / ULP64
    stored = measure_by_name(every, lambda name: ROUNDOFF32 * compute_coarseness(name, record), record)
    noisy = {name: max(noise.roundoff[name], ulp[name] * scale) for name in every}
    floor = _of_rounding(names, record, precision, noise.roundoff, noisy, stored)
    _add_undecided(floor, record, normalised)
    stages = _stages(name for name in names if name.startswith("step"))
    for name in (each for each in every if each.startswith("delta/")):
        of_run = _of_run(name, stages, floor, record, stored[name])
        floor[name] = max(_depth(names) * noisy[name], of_run)
    for name in every:
        if name.startswith(("step1/gradient/", "delta/")) and ulp[name] * scale < 1:
            times = _TIMES_THE_OTHER * math.exp(_SCATTER / math.sqrt(max(1, record[name].size)))
            floor[name] = min(floor[name], max(_OWNED, times * min(side[name] for side in sides)))
    return {name: value for name, value in floor.items() if math.isfinite(value)}


def _of_rounding(
    names: Sequence[str],
    record: Arrays,
    precision: str,
    roundoff: Mapping[str, float],
    noisy: Mapping[str, float],
    stored: Mapping[str, float],
) -> dict[str, float]:
    """Return the floor of every tensor of a step: the largest of the six parts that `compute` lists."""
    unit = PRECISIONS[precision].roundoff
    depth, of_sums, terms = _depth(names), _OF_A_SUM * ROUNDOFF32 / unit, _terms(record)
    floor = dict[str, float]()
    for name in names:
        added = terms.get(_layer(name, _OVER_PIXELS), terms[""])
        floor[name] = max(max(depth, of_sums * math.sqrt(added / 2)) * noisy[name], stored[name])
        if _layer(name) and name.endswith(".bias"):
            alike = terms.get(_layer(name), 1) ** 1.5 * ROUNDOFF32 / unit
            floor[name] = max(floor[name], _OF_ALIKE * alike * roundoff[name])
        if PRECISIONS[precision].is_mixed and f"initial/{_layer(name)}.kernel" in record:
            floor[name] = max(floor[name], unit)
    return floor


def _of_run(name: str, stages: Sequence[str], floor: Mapping[str, float], record: Arrays, stored: float) -> float:
    """Return the floor of the state after a run: of a parameter's whole change, or of a buffer.

    It follows from the floors of the steps and is at least `stored`.
    """
    leaf = name.removeprefix("delta/")
    if (buffer := f"{stages[-1]}/buffer/{leaf}") in floor:
        return floor[buffer]
    updates = [each for stage in stages if (each := f"{stage}/update/{leaf}") in floor]
    allowed = sum(floor[each] * size for each in updates if (size := compute_norm(record[each])))
    moved = compute_norm(record[name])
    return max(allowed / moved if moved else 1.0, stored)


def _add_undecided(floor: dict[str, float], record: Arrays, normalised: bool) -> None:
    """Raise the floors of updates with undecided elements, and the floors of all later steps.

    Each parameter is then off by some part of its norm. All that later steps compute from it is off by about as much.
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
    """Return an update's norm over its parameter's norm, 0 if the latter is zero."""
    whole = compute_norm(record[f"initial/{name.partition('/update/')[2]}"])
    return compute_norm(record[name]) / whole if whole else 0.0


def _undecided(floor: Mapping[str, float], record: Arrays, normalised: bool, name: str) -> float:
    """Return how far an update may be off because elements of its gradient are lost in noise, relatively.

    A rule that divides by the gradient's size, as Adam does, moves such an element by a full step in either direction.
    The element may then be off by twice its part of the update. Any other rule moves it only a little.

    With `normalised`, the full step is the largest in the tensor. Behind a ReLU that never opens the gradient is
    exactly zero and moves nothing in float64. But a kernel that leaves a trace of rounding there moves the parameter
    fully.

    An element is lost if its gradient is less than four standard deviations of the gradient's possible error, which is
    taken as equal in all elements. Parts are of the Euclidean norm.
    """
    of_gradient = name.replace("/update/", "/gradient/")
    update, gradient = record[name], record[of_gradient]
    whole, moved = compute_norm(gradient), compute_norm(update)
    if not whole or not moved:
        return 0.0
    least = _LOST * PRECISION.limit * floor[of_gradient] * whole / math.sqrt(gradient.size)
    step = max(update.max(), -update.min()) if normalised else None
    lost_step = lost_gradient = 0.0
    for steps, slopes in chunks.iterate_chunks(update, gradient):
        lost = np.abs(slopes) < least
        lost_gradient = math.hypot(lost_gradient, compute_norm(slopes[lost]))
        lost_step = math.hypot(lost_step, compute_norm(steps[lost]) if step is None else step * math.sqrt(lost.sum()))
    return max(0.0, 2 * (lost_step / moved - lost_gradient / whole))


def _of_gradients(noise: Mapping[str, float]) -> dict[str, float]:
    """Return noise by tensor. A parameter's change gets at least the noise of its gradient.

    If a gradient is zero but for rounding, weight decay may hide its noise in the stored parameter.
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
    """Return by layer the number of terms in the longest sum behind its gradients, and under "" behind all others.

    An output sums over the kernel. A parameter's gradient and a batch norm's statistics sum over all pixels of the
    layer's output.
    """
    kernels = [array for name, array in record.items() if name.startswith("initial/") and name.endswith(".kernel")]
    forward = max((array.size // array.shape[-1] for array in kernels), default=1)
    outputs = {name.rpartition("/")[2]: array for name, array in record.items() if name.startswith("step1/activation/")}
    return {"": forward} | {layer: max(forward, array.size // array.shape[-1]) for layer, array in outputs.items()}


def _stages(names: Iterable[str]) -> list[str]:
    """Return the stages of tensors (each step, and the evaluation) in execution order."""
    return list(dict.fromkeys(name.partition("/")[0] for name in sort_by_execution(list(names))))


def _layer(name: str, kinds: Collection[str] = _OF_PARAMETERS) -> str:
    """Return the layer of a tensor of one of these kinds, "" for other kinds."""
    return name.rpartition("/")[2].rpartition(".")[0] if any(f"/{kind}/" in name for kind in kinds) else ""


def _depth(names: Iterable[str]) -> float:
    """Return the square root of the number of layers."""
    return math.sqrt(max(1, sum(name.startswith("step1/activation/") for name in names)))
