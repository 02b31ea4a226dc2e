"""What a process has of this machine: cores, a quota of processor time, and instruction sets.

Both sides of a comparison must have the same (`compare.agreement.unequal_resources`).
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from compare.machine import cpu

FULL_EFFORT = "full"
"""The compiler effort of a side whose compiler leaves nothing out."""

CAUSES = {
    "threads": ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC", "NPROC", "XLA_FLAGS"),
    "usable_cores": ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND"),
    "instruction_set": (
        *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "XLA_FLAGS"),
    ),
    "compiler_effort": ("JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_OPTIMIZATION_LEVEL", "XLA_FLAGS", "TORCHINDUCTOR_*"),
}
"""The variables that may limit a resource."""

# From the least to the most: its name, how libraries write it, and the flags of /proc/cpuinfo that it needs.
_LEVELS = (
    ("sse4", r"SSE4", ("sse4_1",)),
    ("avx", r"AVX(?!2|-?512|10)|default", ("avx",)),
    ("avx2", r"AVX2", ("avx2", "fma")),
    ("avx512", r"AVX-?512|AVX10", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ("avx512_bf16", r"AVX-?512.*(bf16|bfloat16)", ("avx512_bf16",)),
    ("amx", r"AMX", ("amx_tile",)),
)
_BUSY_SHARE = 0.02
_CGROUPS = Path("/sys/fs/cgroup")


def describe_process() -> dict[str, Any]:
    """Return `usable_cores` and `cpu_quota` of this process, after it has worked.

    The cores are those of all threads that have worked, because a library may bind its threads to few of them. The
    quota is in cores, and None without a limit.
    """
    return {"usable_cores": len(_list_working_cores()) or cpu.count_usable_cores(), "cpu_quota": read_quota()}


def lower_instruction_set(limits: Iterable[str]) -> str | None:
    """Return this machine's best instruction set, or the lowest of the `limits` if that is less.

    Limits are in the words of the libraries. Other words are no limit. Return None if this machine's sets are unknown.
    """
    best = _find_best_level()
    if best is None:
        return None
    return _LEVELS[min([best, *(level for limit in limits if (level := _parse_level(limit)) is not None)])][0]


def read_quota() -> float | None:
    """Return how many cores the control group of this process may use on average, or None if it sets no limit."""
    return min(_list_quotas(), default=None)


def _list_working_cores() -> set[int]:
    """Return the cores that the threads with a share of this process's time may use. Linux only."""
    threads = list[tuple[int, set[int]]]()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError, ValueError):  # the thread has ended
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            threads.append((nanoseconds, os.sched_getaffinity(int(task.name))))
    least = _BUSY_SHARE * sum(nanoseconds for nanoseconds, _ in threads)
    return {core for nanoseconds, cores in threads if nanoseconds >= least for core in cores}


def _list_quotas() -> Iterator[float]:
    """Yield the limits of this process's control group and of those above it, for both versions (cgroups(7))."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            root = _CGROUPS / "cpu" if controllers else _CGROUPS
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root):
                    yield from _read_quota(folder)


def _read_quota(folder: Path) -> Iterator[float]:
    with suppress(OSError, ValueError, ZeroDivisionError):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)


@cache
def _find_best_level() -> int | None:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("flags"):
                flags = set(line.partition(":")[2].split())
                levels = [number for number, (_, _, needed) in enumerate(_LEVELS) if flags.issuperset(needed)]
                return max(levels, default=None)
    return None


def _parse_level(text: str) -> int | None:
    levels = [number for number, (_, pattern, _) in enumerate(_LEVELS) if re.search(pattern, text, re.IGNORECASE)]
    return max(levels, default=None)
