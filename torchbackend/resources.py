"""What torch has of the machine on a CPU, and how hard its compiler works, read back from the process."""

import functools
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import config as inductor

from compare.base import compiler_flags
from compare.machine import resources

# Options of TorchInductor that are on. Off, they make it do less.
_FULL_EFFORT = (
    *("epilogue_fusion", "pattern_matcher", "layout_optimization", "comprehensive_padding", "online_softmax"),
    *("cpp.no_redundant_loops", "cpp.enable_tiling_heuristics", "triton.persistent_reductions"),
)
_ATEN, _ONEDNN, _MKL = "ATEN_CPU_CAPABILITY", ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"), "MKL_ENABLE_INSTRUCTIONS"
_BEST_OF_ATEN = "AVX512"


def read_settings(device: Any, count: int) -> dict[str, Any]:
    """Return threads, instruction set, compiler effort and flags of a session on `count` devices like `device`."""
    del count  # each device has a process of its own
    reduced = [f"{name} off" for name in _FULL_EFFORT if not _read_option(name)]
    found: dict[str, Any] = {
        "compiler_effort": ", ".join(reduced) or resources.FULL_EFFORT,
        "threads": torch.get_num_threads(),
    }
    found |= compiler_flags.read_settings("torch", device.type, os.environ)
    if device.type == "cpu":
        found["instruction_set"] = resources.lower_instruction_set(_list_limits())
    return found


def _read_option(name: str) -> bool:
    value: Any = inductor
    for part in name.split("."):
        value = getattr(value, part, True)  # a version without the option does not leave it out
    return bool(value)


def _list_limits() -> Iterator[str]:
    """Yield the instruction sets of torch's libraries that a variable may limit."""
    if _ATEN in os.environ and (capability := torch.backends.cpu.get_cpu_capability()) != _BEST_OF_ATEN:
        yield capability
    if any(name in os.environ for name in _ONEDNN):
        yield _onednn() or next(os.environ[name] for name in _ONEDNN if name in os.environ)
    if _MKL in os.environ:  # MKL does not tell
        yield os.environ[_MKL]


@functools.cache
def _onednn() -> str:
    """Return oneDNN's instruction set, or "" if it does not tell. It prints it with its first verbose operation."""
    with tempfile.TemporaryFile() as output:
        standard = os.dup(1)
        try:
            os.dup2(output.fileno(), 1)
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                torch.nn.functional.conv2d(torch.ones(16, 8, 32, 32), torch.ones(8, 8, 3, 3))
        finally:
            os.dup2(standard, 1)
            os.close(standard)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    return next((line.partition("isa:")[2] for line in lines if ",cpu,isa:" in line), "")
