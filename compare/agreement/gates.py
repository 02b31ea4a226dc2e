"""The gates: pure functions over two contenders' recorded arrays (`compare.certificates.recording` says which).

An error is |a - b| / |b| in the Euclidean norm over one tensor, b being the baseline's.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compare import chunks
from compare.agreement.threads import by_name
from compare.interface import Array, Arrays, is_buffer

SEMANTIC_LIMIT = 1e-10
SCALING_LIMIT = 1e6
PRECISION_LIMIT = 10.0
UPDATE_LIMIT, UPDATE_NOISE = 2.0, 1.25
BUFFERS = 100.0
"""How much more closely updates of buffers are held than those of parameters: they are statistics, no gradients."""
LIMITS = {"semantic": SEMANTIC_LIMIT, "scaling": SCALING_LIMIT, "precision": PRECISION_LIMIT}

_STORED = 4
ROUNDOFF64, ROUNDOFF32 = 2.0**-53, 2.0**-24


@dataclass(frozen=True)
class Gate:
    """One gate's outcome: `value` (None where it could not be computed) against `limit`, and the worst tensor."""

    name: str
    value: float | None
    limit: float
    passed: bool
    worst_tensor: str | None


@dataclass(frozen=True)
class Updates:
    """What a few steps change of a side's parameters and buffers, and the `noise` in it.

    That is by name how far `apart` it is, at most, from the same of runs whose initial weights one ulp has moved.
    """

    changes: Arrays
    noise: Mapping[str, float]


class Incomparable(Exception):
    """Two records that no arithmetic can compare: a `tensor` missing, of another shape or dtype, or not finite."""

    def __init__(self, tensor: str, what: str) -> None:
        super().__init__(f"{tensor} {what}")
        self.tensor = tensor


def errors(baseline: Arrays, contender: Arrays) -> dict[str, float]:
    """Return each tensor's error, initial values excluded (they must be equal) and buffers as change from the start.

    Raises:
        Incomparable: naming the tensor, before any arithmetic on it.
    """
    check_comparable(baseline, contender)
    for name, reference in baseline.items():
        if name.startswith("initial/") and not np.array_equal(contender[name], reference):
            raise Incomparable(name, "differs although both start from the same bits")
    values, references = changes(contender), changes(baseline)
    return by_name(
        references,
        lambda name: relative_error(values[name], references[name], size(name, references[name], baseline)),
        baseline,
    )


def changes(record: Arrays) -> Arrays:
    """Return what is compared: all but the initial values, buffers as change from their initial value."""
    found: Arrays = {}
    for name, array in record.items():
        stage, _, rest = name.partition("/")
        kind, _, leaf = rest.partition("/")
        if stage != "initial":
            found[name] = array - record[f"initial/{leaf}"] if kind == "buffer" else array
    return found


def check_comparable(baseline: Arrays, contender: Arrays) -> None:
    """Check names, shapes, dtypes and finiteness in execution order.

    Raises:
        Incomparable: naming the first tensor that is wrong and how.
    """
    sides = {"baseline": baseline, "contender": contender}

    def check(name: str) -> None:
        for side, arrays in sides.items():
            if name not in arrays:
                raise Incomparable(name, f"is missing in the {side}")
        a, b = baseline[name], contender[name]
        if a.shape != b.shape:
            raise Incomparable(name, f"has shape {list(a.shape)} in the baseline, {list(b.shape)} in the contender")
        if a.dtype != b.dtype:
            raise Incomparable(name, f"is {a.dtype} in the baseline, {b.dtype} in the contender")
        for side, arrays in sides.items():
            if not is_finite(arrays[name]):
                raise Incomparable(name, f"is not finite in the {side}")

    every = in_execution_order([*baseline, *(name for name in contender if name not in baseline)])
    by_name(every, check, baseline)


def is_finite(array: Array) -> bool:
    """Return whether no element is infinite or not a number."""
    return all(bool(np.isfinite(chunk).all()) for (chunk,) in chunks.of(array))


def relative_error(value: Array, reference: Array, whole: float | None = None) -> float:
    """Return |value - reference| / |reference|, 0 where both are zero, infinity where only the reference is.

    `whole` is what the error is relative to, where that is not the reference's `norm`.
    """
    difference = _root(np.subtract(a, b, dtype=np.float64) for a, b in chunks.of(value, reference))
    if not difference:
        return 0.0
    whole = norm(reference) if whole is None else whole
    return difference / whole if whole else math.inf


def size(name: str, array: Array, record: Arrays) -> float:
    """Return what a tensor's error is relative to: its norm, or that of what float64 resolves of it.

    A change of a stored tensor of `record` by less than one roundoff of it is nothing but rounding, zero or not.
    """
    initial = _stored(name, record)
    return norm(array) if initial is None else max(norm(array), ROUNDOFF64 * norm(initial))


def norm(array: Array) -> float:
    """Return the Euclidean norm over all elements, in float64."""
    return _root(np.asarray(chunk, np.float64) for (chunk,) in chunks.of(array))


def _root(parts: Iterable[Array]) -> float:
    """Return the square root of the sum of the squares of all parts.

    Not by `numpy.linalg.norm`: its BLAS divides every tensor among threads, which spin while others need the cores.
    """
    return math.sqrt(sum(float(np.einsum("i,i->", part, part)) for part in parts))


def scaling_ratios(
    e32: dict[str, float], e64: dict[str, float], baseline: Mapping[str, Arrays], contender: Mapping[str, Arrays]
) -> dict[str, float]:
    """Return e32 / e64 by tensor, of sides whose records these are by precision.

    Neither error is taken below what storage can resolve: bits that happen to agree prove nothing. A change of a stored
    tensor is resolved to |tensor| / |change| units of roundoff only, because the tensor is rounded after the change is
    added. Nor is e32 taken below what float32 costs either side by itself: two programs of one framework may round
    alike in float32, and not in float64, for which it has other kernels.
    """

    def ratio(name: str) -> float:
        if math.isinf(e64[name]):  # the reference is zero in float64, and then in float32 as well
            return 1.0
        least = coarseness(name, baseline["float64"])
        return max(e32[name], ROUNDOFF32 * least) / max(e64[name], ROUNDOFF64 * least)

    ratios = by_name(e64, ratio, baseline["float64"])
    weak = [name for name in e64 if ratios[name] < SCALING_LIMIT and e64[name] <= SEMANTIC_LIMIT]
    sides = [(changes(side["float64"]), changes(side["float32"])) for side in (baseline, contender)] if weak else []

    def own(name: str) -> float:
        return min(
            relative_error(single[name], exact[name], size(name, exact[name], baseline["float64"]))
            for exact, single in sides
        )

    of_one_side = by_name(weak, own, baseline["float64"])
    return ratios | {name: max(ratios[name], error / e64[name]) for name, error in of_one_side.items()}


def coarseness(name: str, record: Arrays) -> float:
    """Return |stored tensor| / |its change| where `name` is a change of a parameter or buffer, at least 1."""
    initial = _stored(name, record)
    if initial is None:
        return 1.0
    whole = size(name, record[name] - initial if "/buffer/" in name else record[name], record)
    return max(1.0, norm(initial) / whole) if whole else 1.0


def _stored(name: str, record: Arrays) -> Array | None:
    """Return the initial value of what `name` is a change of, None where it is no change."""
    if "/gradient/" in name:
        return None
    return record.get(f"initial/{name.split('/', 2 if name.startswith('step') else 1)[-1]}")


def in_execution_order(names: Sequence[str]) -> list[str]:
    """Return names as they come to be: by step, forward before backward, gradients from the last layer back."""
    stages = ("activation", "logits", "loss", "gradient", "buffer", "update")

    def key(item: tuple[int, str]) -> tuple[int, int, int]:
        index, name = item
        step, _, rest = name.partition("/")
        kind = rest.partition("/")[0]
        if not step.startswith("step"):
            return ({"initial": 0, "evaluation": 1_000_000}.get(step, 2_000_000), 0, index)
        return (int(step[4:]), stages.index(kind), -index if kind == "gradient" else index)

    return [name for _, name in sorted(enumerate(names), key=key)]


def semantic(e64: dict[str, float]) -> Gate:
    """Gate 1: in float64 no tensor's error exceeds 1e-10."""
    worst = max(e64, key=lambda name: e64[name])
    return Gate("semantic", _json(e64[worst]), SEMANTIC_LIMIT, e64[worst] <= SEMANTIC_LIMIT, worst)


def scaling(ratios: dict[str, float]) -> Gate:
    """Gate 2: from float32 to float64 every error falls by 1e6 (rounding predicts 5e8, another meaning about 1)."""
    worst = min(ratios, key=lambda name: ratios[name])
    return Gate("scaling", _json(ratios[worst]), SCALING_LIMIT, ratios[worst] >= SCALING_LIMIT, worst)


def determinism(once: Arrays, again: Arrays) -> Gate:
    """Two runs of one side must be equal bit for bit; the value is the number of tensors that are not."""
    unequal = [name for name in in_execution_order(list(once)) if not np.array_equal(once[name], again[name])]
    return Gate("determinism", float(len(unequal)), 0.0, not unequal, unequal[0] if unequal else None)


def update(baseline: Updates, contender: Updates) -> Gate:
    """At the batch that is timed, both sides' updates are one: of one size and direction, within a factor of two.

    Those of buffers are within a hundredth of it. A gate that can ask no parameter fails.
    """
    figures, names = apart(baseline.changes, contender.changes), asked(baseline, contender)
    if all(map(is_buffer, names)):
        return Gate("update", None, UPDATE_LIMIT, False, None)
    worst = max(names, key=lambda name: figures[name])
    return Gate("update", _json(figures[worst]), UPDATE_LIMIT, figures[worst] <= UPDATE_LIMIT, worst)


def asked(baseline: Updates, contender: Updates) -> list[str]:
    """Return every name of which moving the initial weights by one ulp makes no other update on one side at least.

    What is more is rounding, of what is computed or of what is stored.
    """
    ours, theirs = baseline.noise, contender.noise
    names = dict.fromkeys((*ours, *theirs))
    return [name for name in names if min(ours.get(name, math.inf), theirs.get(name, math.inf)) <= UPDATE_NOISE]


def apart(one: Arrays, other: Arrays) -> dict[str, float]:
    """Return by name how far two updates a and b of it are apart: max(|a|^2, |b|^2) / <a, b>.

    That is 1 where they are equal, the more the more they differ in size or direction, and infinite where they have
    nothing in common, neither moves it, or one side has none of that name and shape. Of a buffer, what it is more than
    1 counts `BUFFERS` times.
    """
    found = {name: _apart(one.get(name), other.get(name)) for name in {**one, **other}}
    return {name: 1 + BUFFERS * (value - 1) if is_buffer(name) else value for name, value in found.items()}


def _apart(a: Array | None, b: Array | None) -> float:
    if a is None or b is None or a.shape != b.shape:
        return math.inf
    shared = _product(a, b)
    return max(_product(a, a), _product(b, b)) / shared if shared > 0 else math.inf


def is_stored(change: Array, array: Array) -> bool:
    """Whether what was added to an array is, in the root mean square, four units of its last place and more."""
    return norm(change) >= _STORED * float(np.finfo(array.dtype).eps) * norm(array)


def _product(a: Array, b: Array) -> float:
    return float(np.einsum("i,i->", a.ravel(), b.ravel(), dtype=np.float64))


def fails(e64: float, ratio: float) -> bool:
    """Whether one tensor fails gate 1 or gate 2."""
    return not (e64 <= SEMANTIC_LIMIT and ratio >= SCALING_LIMIT)


def _json(value: float) -> float | None:
    return value if np.isfinite(value) else None
