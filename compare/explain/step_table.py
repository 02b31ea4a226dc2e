"""The time of a step by class of work and by layer."""

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from compare.base.operation_counts import CONVOLUTION, Operation
from compare.base.profiles import Peaks, Profile
from compare.explain import kernels as kernel_times
from compare.explain import torch_trace, xla_trace
from compare.explain.kernels import Kernel
from compare.explain.work_classes import CLASSES, CONVOLUTIONS, IDLE, PRODUCT, UNATTRIBUTED

OUTSIDE = "(outside layers)"
"""Stands for work that belongs to no single layer, such as the loss."""

_PRODUCTS = (*CONVOLUTIONS.values(), PRODUCT)
_WHOLE = 0.8
"""The part of the kernels that a profile of a captured step must have."""
_MOST_LENGTHENED = 1.1
"""How much longer a GPU's profiled kernels may take than the timed step. A profiler adds up to 1 us to a kernel."""

BYTES, ARITHMETIC, LAUNCHES = "bytes", "arithmetic", "launches"
_SHORT_KERNEL_SECONDS = 1e-5
_FAR_FROM_PEAK = 0.2


@dataclass
class Work:
    """What one class or layer takes of a step.

    Attributes:
        seconds: time per step.
        kernels: kernels per step.
        bytes: bytes per step, from the kernels' shapes.
        flops: operations of convolutions and products per step, from the traced step.
        names: seconds by name of a kernel.
        share, limit: as `judge_roofline` returns them.
    """

    seconds: float = 0.0
    kernels: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0
    names: defaultdict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    share: float | None = None
    limit: str | None = None

    def longest_names(self, count: int = 5) -> list[str]:
        """Return the names of the kernels that take longest."""
        return sorted(self.names, key=lambda name: -self.names[name])[:count]


@dataclass(frozen=True)
class StepTable:
    """One contender's step.

    Attributes:
        step_seconds: the timed step. The classes sum to it.
        classes: work by class.
        layers: work by layer and direction, of the uncaptured step.
        uncaptured: seconds by class of the uncaptured step, if the classes are those of a captured one; else empty.
        casts: seconds of kernels that only change a dtype.
        excess_seconds: seconds by which the kernels exceed the timed step, where they are not scaled to it.
        scale: factor by which the kernels were scaled to the timed step, because the profiler lengthens them.
        kernels: the kernels of the timed step.
        steps: how many steps these kernels belong to.
    """

    step_seconds: float
    classes: Mapping[str, Work]
    layers: Mapping[tuple[str, str], Work]
    uncaptured: Mapping[str, float]
    casts: float
    excess_seconds: float
    scale: float
    kernels: Sequence[Kernel]
    steps: int

    @property
    def busy_seconds(self) -> float:
        """The time in which kernels run."""
        return sum(work.seconds for name, work in self.classes.items() if name != IDLE)

    @property
    def attributed_share(self) -> float:
        """The part of the step that is not `unattributed`."""
        return 1 - self.classes[UNATTRIBUTED].seconds / self.step_seconds

    def seconds(self, *names: str) -> float:
        """Return the seconds of some classes together."""
        return sum(self.classes[name].seconds for name in names)


def read_kernels(profile: Profile) -> list[Kernel]:
    """Return the kernels of a profile, in the order in which they began."""
    return torch_trace.read(profile) if profile.kind == "torch" else xla_trace.read(profile)


def build(
    step_seconds: float,
    uncaptured: Profile,
    timed: Profile | None,
    operations: Sequence[Operation],
    peaks: Peaks,
) -> StepTable:
    """Return the table of a step.

    Args:
        step_seconds: seconds of the timed step.
        uncaptured: the profile of a step whose kernels are started one by one.
        timed: the profile of the step as it is timed, if it is captured. The classes are those of this profile.
        operations: convolutions and products of the step.
        peaks: the device's peaks.
    """
    open_kernels = read_kernels(uncaptured)
    kernels, steps = open_kernels, uncaptured.steps
    captured = [] if timed is None else _recall(read_kernels(timed), timed.steps, open_kernels, uncaptured.steps)
    is_seen = timed is not None and _is_whole(captured, timed.steps, open_kernels, uncaptured.steps)
    if timed is not None and is_seen:
        kernels, steps = captured, timed.steps
    shares, scale = kernel_times.share_time(kernels), 1.0
    if uncaptured.device == "cpu" and kernels:
        busy_share = kernel_times.find_busy_share(kernels, shares, steps)
        shares = kernel_times.take_medians(kernels, shares, steps)
        scale = step_seconds * busy_share * steps / (sum(shares) or 1.0)
    elif step_seconds < (busy := sum(shares) / steps) <= _MOST_LENGTHENED * step_seconds:
        scale = step_seconds / busy
    classes = {name: Work() for name in CLASSES}
    for kernel, seconds in zip(kernels, shares, strict=True):
        _add(classes[kernel.work], kernel, scale * seconds / steps, steps)
    busy = sum(work.seconds for work in classes.values())
    classes[IDLE].seconds = max(0.0, step_seconds - busy)
    open_shares = shares if kernels is open_kernels else kernel_times.share_time(open_kernels)
    layers = _layers(open_kernels, open_shares, uncaptured.steps, scale)
    _count(operations, classes, layers)
    for work in (*classes.values(), *layers.values()):
        work.share, work.limit = judge_roofline(work.seconds, work.kernels, work.bytes, work.flops, peaks)
    return StepTable(
        step_seconds,
        classes,
        layers,
        _seconds_by_class(open_kernels, uncaptured.steps) if is_seen else {},
        sum(scale * seconds / steps for kernel, seconds in zip(kernels, shares, strict=True) if kernel.is_cast),
        max(0.0, busy - step_seconds),
        scale,
        kernels,
        steps,
    )


def _add(work: Work, kernel: Kernel, seconds: float, steps: int) -> None:
    work.seconds += seconds
    work.kernels += 1 / steps
    work.bytes += kernel.bytes / steps
    work.names[kernel.name] += seconds


def _layers(
    kernels: Sequence[Kernel], shares: Sequence[float], steps: int, scale: float
) -> dict[tuple[str, str], Work]:
    layers: defaultdict[tuple[str, str], Work] = defaultdict(Work)
    for kernel, seconds in zip(kernels, shares, strict=True):
        _add(layers[kernel.layer or OUTSIDE, kernel.direction], kernel, scale * seconds / steps, steps)
    return dict(layers)


def _seconds_by_class(kernels: Sequence[Kernel], steps: int) -> dict[str, float]:
    found = dict.fromkeys(CLASSES, 0.0)
    for kernel, seconds in zip(kernels, kernel_times.share_time(kernels), strict=True):
        found[kernel.work] += seconds / steps
    return found


def _count(
    operations: Sequence[Operation], classes: Mapping[str, Work], layers: Mapping[tuple[str, str], Work]
) -> None:
    for operation in operations:
        name = CONVOLUTIONS[operation.direction] if operation.kind == CONVOLUTION else PRODUCT
        classes[name].flops += operation.flops
        if (layer := layers.get((operation.layer, operation.direction))) is not None:
            layer.flops += operation.flops


def _is_whole(captured: Sequence[Kernel], steps: int, known: Sequence[Kernel], known_steps: int) -> bool:
    """Tell whether the profiler saw a captured step's kernels. It misses those of loops that the device repeats."""
    return len(captured) / steps >= _WHOLE * len(known) / known_steps


def _recall(captured: Sequence[Kernel], steps: int, known: Sequence[Kernel], known_steps: int) -> list[Kernel]:
    """Return the kernels of a captured step with classes and layers from the uncaptured step.

    A captured graph hides what launches its kernels. Both steps run about the same kernels in the same order, so their
    names are aligned. Between two kernels with a twin, another process may have chosen other kernels for a product.
    These do the work of the uncaptured kernels in the same place.
    """
    count, model = len(captured) // steps, known[: len(known) // known_steps]
    if not count or not model:
        return list(captured)
    recalled, twins, names = list[Kernel](), list[Kernel | None](), list[str]()
    for begin in range(0, len(captured), count):
        part = captured[begin : begin + count]
        if names != (names := [kernel.name for kernel in part]):
            twins = _align(part, model)
        recalled += [
            kernel if twin is None or kernel.operation else _as_twin(kernel, twin)
            for kernel, twin in zip(part, twins, strict=True)
        ]
    return recalled


def _as_twin(kernel: Kernel, twin: Kernel) -> Kernel:
    return replace(twin, name=kernel.name, begin=kernel.begin, end=kernel.end, lane=kernel.lane)


def _align(part: Sequence[Kernel], model: Sequence[Kernel]) -> list[Kernel | None]:
    """Return the kernel of the model that does the work of each kernel of the part, or None."""
    twins: list[Kernel | None] = [None] * len(part)
    by_name = {kernel.name: kernel for kernel in model}
    names, model_names = [kernel.name for kernel in part], [kernel.name for kernel in model]
    matcher = difflib.SequenceMatcher(None, names, model_names, autojunk=False)
    for _, begin, end, model_begin, model_end in matcher.get_opcodes():
        for offset, index in enumerate(range(begin, end)):
            twins[index] = by_name.get(names[index])
            if names[index : index + 1] == model_names[model_begin + offset : model_begin + offset + 1]:
                twins[index] = model[model_begin + offset]
            elif twins[index] is None and part[index].work in _PRODUCTS:
                place = model_begin + offset * (model_end - model_begin) // (end - begin)
                twins[index] = _nearest_product(model, place)
    return twins


def _nearest_product(model: Sequence[Kernel], place: int) -> Kernel | None:
    """Return the convolution or product that is nearest to a place of the model."""
    places = [index for index, kernel in enumerate(model) if kernel.work in _PRODUCTS]
    return model[min(places, key=lambda index: abs(index - place))] if places else None


def judge_roofline(
    seconds: float, kernels: float, size: float, flops: float, peaks: Peaks
) -> tuple[float | None, str | None]:
    """Return the least possible time over the time taken, at most 1, and the limit.

    Launches are the limit of many short kernels that are far from both peaks. Without bytes, operations and time there
    is neither figure.
    """
    if seconds <= 0:
        return None, None
    by_bytes = size / peaks.bandwidth_bytes_per_second if peaks.bandwidth_bytes_per_second else 0.0
    by_flops = flops / peaks.flops_per_second if peaks.flops_per_second else 0.0
    least = max(by_bytes, by_flops)
    if not least:
        return None, None
    share = min(1.0, least / seconds)
    if share < _FAR_FROM_PEAK and kernels and seconds / kernels < _SHORT_KERNEL_SECONDS:
        return share, LAUNCHES
    return share, BYTES if by_bytes >= by_flops else ARITHMETIC
