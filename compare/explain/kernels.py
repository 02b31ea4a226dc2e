"""Kernels of a step with their class and layer, and how much of the device's time each takes."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Kernel:
    """One kernel, copy or operation that ran.

    Attributes:
        name: its name in the profiler.
        begin, end: seconds on one clock.
        lane: the stream or thread that it ran on.
        work: its class (`compare.explain.work_classes.CLASSES`).
        layer: the neutral name of its layer, or "".
        direction: the pass of that layer (`compare.base.operation_counts.DIRECTIONS`), `update`, or "".
        bytes: bytes that it must read and write, from the shapes of its arguments; 0 if these are unknown.
        operation: the framework's name of the operation behind it.
        is_cast: whether it only changes the dtype of values.
    """

    name: str
    begin: float
    end: float
    lane: str
    work: str
    layer: str = ""
    direction: str = ""
    bytes: float = 0.0
    operation: str = ""
    is_cast: bool = False

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.end - self.begin


def share_time(kernels: Sequence[Kernel]) -> list[float]:
    """Return the seconds of the device's time that each kernel takes. Kernels that run together share it evenly."""
    taken = [0.0] * len(kernels)
    for running, seconds in _spans(kernels):
        for index in running:
            taken[index] += seconds / len(running)
    return taken


def take_medians(kernels: Sequence[Kernel], shares: Sequence[float], steps: int) -> list[float]:
    """Return the time of each kernel as the median over all steps, if every step runs the same kernels.

    On a CPU another program may stop a single kernel for longer than a step takes.
    """
    count = len(kernels) // steps
    names = [kernel.name for kernel in kernels]
    if len(kernels) != count * steps or any(names[:count] != names[i : i + count] for i in range(0, len(names), count)):
        return list(shares)
    return [median(shares[place::count]) for place in range(count)] * steps


def find_busy_share(kernels: Sequence[Kernel], shares: Sequence[float], steps: int) -> float:
    """Return the part of a step in which kernels run, as the median over all steps. The last step may be cut off."""
    count = len(kernels) // steps
    places = range(0, count * steps, count)
    parts = [
        sum(shares[place:following]) / (kernels[following].begin - kernels[place].begin)
        for place, following in itertools.pairwise(places)
    ]
    if not parts:
        return sum(shares) / (max(kernel.end for kernel in kernels) - kernels[0].begin)
    return min(1.0, median(parts))


def _spans(kernels: Sequence[Kernel]) -> Iterator[tuple[set[int], float]]:
    """Yield which kernels run together, and for how many seconds."""
    moments = [(kernel.end, 0, index) for index, kernel in enumerate(kernels)]
    moments += [(kernel.begin, 1, index) for index, kernel in enumerate(kernels)]
    running, before = set[int](), 0.0
    for moment, begins, index in sorted(moments):
        if running and moment > before:
            yield running, moment - before
        if begins and kernels[index].end > kernels[index].begin:
            running.add(index)
        else:
            running.discard(index)
        before = moment
