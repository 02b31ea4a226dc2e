"""Print where the time of a step goes, by kind of kernel and by kernel, from a framework's profiler."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from compare.base.interface import Kernel

KINDS: Mapping[str, str] = {
    "convolution forward": r"fprop|convolve_sgemm|winograd",
    "convolution data gradient": r"dgrad",
    "convolution weight gradient": r"wgrad",
    "matrix product": r"gemm|nvjet|cutlass|matmul|triton_mm|_dot_",
    "communication": r"nccl|all_?reduce|all_?gather|reduce_?scatter",
    # TorchInductor names a kernel after all operations that it fuses, casts and paddings included.
    "layout and copies": r"^(?!triton_(poi|red|per)).*(memcpy|memset|nchwtonhwc|nhwctonchw|transpose|copy|pad)",
    "optimizer": r"multi_tensor|adam|sgd",
    "batch norm and elementwise": r"triton|fusion|reduce|elementwise|norm|pool|vectorized|select|add|convert",
}


def kind(kernel: str) -> str:
    return next((name for name, pattern in KINDS.items() if re.search(pattern, kernel.lower())), "other")


def table(kernels: Sequence[Kernel], steps: int, step_seconds: float, count: int = 25) -> str:
    """Return the time of one device's kernels and how much of it they run alone, with the `count` longest kernels."""
    by_kind: defaultdict[str, float] = defaultdict(float)
    by_name: defaultdict[str, float] = defaultdict(float)
    alone: defaultdict[str, float] = defaultdict(float)
    launched: defaultdict[str, int] = defaultdict(int)
    busy = 0.0
    for kernel in kernels:
        seconds = (kernel.end - kernel.begin) / steps
        by_kind[kind(kernel.name)] += seconds
        by_name[kernel.name] += seconds
        launched[kernel.name] += 1
    for running, seconds in _spans(kernels):
        busy += seconds / steps
        for names in ({*running}, {kind(name) for name in running}):
            if len(names) == 1:
                alone[names.pop()] += seconds / steps
    by_kind["no kernel runs"] = alone["no kernel runs"] = max(0.0, step_seconds - busy)

    def line(name: str, seconds: float) -> str:
        return f"{1e3 * seconds:9.4f} ms {1e3 * alone[name]:9.4f} alone"

    lines = [f"  {line(name, seconds)}  {name}" for name, seconds in longest(by_kind, len(by_kind))]
    lines += [
        f"    {line(name, seconds)} {launched[name] / steps:4.0f}  {kind(name)[:20]:20}  {name[:140]}"
        for name, seconds in longest(by_name, count)
    ]
    return "\n".join(lines)


def _spans(kernels: Sequence[Kernel]) -> Iterator[tuple[Sequence[str], float]]:
    """Yield the names of the kernels that run together, and for how many seconds."""
    running, before = list[str](), 0.0
    begins = [(kernel.begin, 1, kernel.name) for kernel in kernels]
    for moment, begun, name in sorted([*begins, *((kernel.end, 0, kernel.name) for kernel in kernels)]):
        if running and moment > before:
            yield running, moment - before
        running.append(name) if begun else running.remove(name)
        before = moment


def longest(seconds: Mapping[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])[:count]
