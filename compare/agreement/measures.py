"""Measures of a record's tensors, one at a time and in float64, and the order of their names.

An error is |a - b| / |b| in the Euclidean norm over one tensor, where b is the baseline's.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from compare.base import chunks
from compare.base.interface import Array, Arrays, is_buffer
from compare.base.precisions import PRECISIONS

ROUNDOFF64, ROUNDOFF32 = PRECISIONS["float64"].roundoff, PRECISIONS["float32"].roundoff
_STORED = 4  # units in the last place
_BUFFER_FACTOR = 100.0
"""How much closer updates of buffers must agree than those of parameters: they are statistics, no gradients."""

MOST_THREADS = 5
"""Threads of one certificate."""
_LARGE = 2**24
"""Elements of a record for which threads are worth it. With small tensors they hinder each other."""

T = TypeVar("T")


@dataclass(frozen=True)
class Updates:
    """How a few steps change one side's parameters and buffers.

    Attributes:
        changes: change by name.
        noise: by name, the largest distance (`update_distances`) to runs whose initial weights were moved by one ulp.
    """

    changes: Arrays
    noise: Mapping[str, float]


def compute_changes(record: Arrays) -> Arrays:
    """Return the tensors to compare: all but the initial values. Buffers become changes from their initial values."""
    found: Arrays = {}
    for name, array in record.items():
        stage, _, rest = name.partition("/")
        kind, _, leaf = rest.partition("/")
        if stage != "initial":
            found[name] = array - record[f"initial/{leaf}"] if kind == "buffer" else array
    return found


def is_finite(array: Array) -> bool:
    """Return whether no element is infinite or not a number."""
    return all(bool(np.isfinite(chunk).all()) for (chunk,) in chunks.iterate_chunks(array))


def compute_relative_error(value: Array, reference: Array, whole: float | None = None) -> float:
    """Return |value - reference| / |reference|: 0 if both are zero, infinity if only the reference is.

    `whole` replaces the reference's norm as the divisor.
    """
    difference = _root(np.subtract(a, b, dtype=np.float64) for a, b in chunks.iterate_chunks(value, reference))
    if not difference:
        return 0.0
    whole = compute_norm(reference) if whole is None else whole
    return difference / whole if whole else math.inf


def compute_reference_size(name: str, array: Array, record: Arrays) -> float:
    """Return the divisor of a tensor's relative error: its norm, but no less than float64 resolves of it.

    A change of a stored tensor by less than one roundoff of the tensor is only rounding.
    """
    initial = _stored(name, record)
    return compute_norm(array) if initial is None else max(compute_norm(array), ROUNDOFF64 * compute_norm(initial))


def compute_norm(array: Array) -> float:
    """Return the Euclidean norm over all elements, in float64."""
    return _root(np.asarray(chunk, np.float64) for (chunk,) in chunks.iterate_chunks(array))


def _root(parts: Iterable[Array]) -> float:
    """Return the square root of the sum of the squares of all parts.

    `numpy.linalg.norm` would use BLAS, which divides every tensor among threads. These spin while others need the
    cores.
    """
    return math.sqrt(sum(float(np.einsum("i,i->", part, part)) for part in parts))


def compute_coarseness(name: str, record: Arrays) -> float:
    """Return |stored tensor| / |its change|, at least 1. Tensors that are no change of a stored one give 1."""
    initial = _stored(name, record)
    if initial is None:
        return 1.0
    whole = compute_reference_size(name, record[name] - initial if "/buffer/" in name else record[name], record)
    return max(1.0, compute_norm(initial) / whole) if whole else 1.0


def _stored(name: str, record: Arrays) -> Array | None:
    """Return the initial value of the tensor that `name` is a change of, None if it is no change."""
    if "/gradient/" in name:
        return None
    return record.get(f"initial/{name.split('/', 2 if name.startswith('step') else 1)[-1]}")


def sort_by_execution(names: Sequence[str]) -> list[str]:
    """Return names in the order of computation: by step, forward before backward, gradients from the last layer."""
    stages = ("activation", "logits", "loss", "gradient", "buffer", "update")

    def key(item: tuple[int, str]) -> tuple[int, int, int]:
        index, name = item
        step, _, rest = name.partition("/")
        kind = rest.partition("/")[0]
        if not step.startswith("step"):
            return ({"initial": 0, "evaluation": 1_000_000}.get(step, 2_000_000), 0, index)
        return (int(step[4:]), stages.index(kind), -index if kind == "gradient" else index)

    return [name for _, name in sorted(enumerate(names), key=key)]


def is_stored(change: Array, array: Array) -> bool:
    """Return whether a change is at least four units of the array's last place, in the root mean square."""
    return compute_norm(change) >= _STORED * float(np.finfo(array.dtype).eps) * compute_norm(array)


def update_distances(one: Arrays, other: Arrays) -> dict[str, float]:
    """Return by name the distance of two updates a and b of a tensor: max(|a|^2, |b|^2) / <a, b>.

    Equal updates have the distance 1. It grows as they differ in size or direction. It is infinite if they have nothing
    in common, if neither moves the tensor, or if one side lacks that name and shape. The excess over 1 counts a hundred
    times for buffers.
    """
    found = {name: _distance(one.get(name), other.get(name)) for name in {**one, **other}}
    return {name: 1 + _BUFFER_FACTOR * (value - 1) if is_buffer(name) else value for name, value in found.items()}


def _distance(a: Array | None, b: Array | None) -> float:
    if a is None or b is None or a.shape != b.shape:
        return math.inf
    shared = _product(a, b)
    return max(_product(a, a), _product(b, b)) / shared if shared > 0 else math.inf


def _product(a: Array, b: Array) -> float:
    return float(np.einsum("i,i->", a.ravel(), b.ravel(), dtype=np.float64))


def measure_by_name(names: Iterable[str], figure: Callable[[str], T], record: Arrays) -> dict[str, T]:
    """Return `figure(name)` for tensors of a record, in the order of the names, computed by several threads.

    NumPy lets other threads work while it computes on a chunk of an array. An exception of `figure` is raised once all
    threads have stopped. Of several, the first in the order of the names is raised.
    """
    order = list(names)
    found, failed, left = dict[str, T](), dict[int, Exception](), iter(enumerate(order))

    def work(_: int) -> None:
        for index, name in left:
            try:
                found[name] = figure(name)
            except Exception as error:
                failed[index] = error
                return

    count = MOST_THREADS if sum(array.size for array in record.values()) >= _LARGE else 1
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))
    if failed:
        raise failed[min(failed)]
    return {name: found[name] for name in order}
