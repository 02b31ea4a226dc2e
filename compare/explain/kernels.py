"""Kernels of a step with their class and layer, and how much of the device's time each takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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


def span(kernels: Sequence[Kernel]) -> float:
    """Return the seconds from the first kernel's begin to the last one's end."""
    if not kernels:
        return 0.0
    return max(kernel.end for kernel in kernels) - min(kernel.begin for kernel in kernels)


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
