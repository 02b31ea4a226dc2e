"""What XLA has of the machine on a CPU, and how hard its compiler works, read back from the process."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from jax._src import compiler

from compare.base import compiler_flags
from compare.machine import resources

_POOL = "tf_XLAEigen"
# XLA's own values, and JAX's for its variables. Any other value makes XLA do less.
_FULL_EFFORT = {
    "xla_backend_optimization_level": "3",
    "xla_llvm_disable_expensive_passes": "false",
    "xla_disable_all_hlo_passes": "false",
    "xla_disable_hlo_passes": "",
}
_FULL_EFFORT_OF_JAX = {
    "jax_disable_most_optimizations": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_optimization_level": "UNKNOWN",
}


def read_settings(device: Any, count: int) -> dict[str, Any]:
    """Return `threads`, `instruction_set`, `compiler_effort` and flags of a session on `count` devices like `device`.

    JAX does not tell its number of threads, so the threads with the name of one CPU device's pool are counted
    (proc(5)). Nothing is returned where the system does not name threads. The pool of several CPU devices has more
    threads, for exchanges that wait.
    """
    options = _read_options()
    reduced = [f"{name} {value}" for name, value in _list_reduced(options)]
    found: dict[str, Any] = {"compiler_effort": ", ".join(reduced) or resources.FULL_EFFORT}
    found |= compiler_flags.read_settings("jax", "cpu" if device.platform == "cpu" else "cuda", os.environ)
    if device.platform != "cpu":
        return found
    found["instruction_set"] = resources.lower_instruction_set([options.get("xla_cpu_max_isa", "")])
    threads = list(_names()).count(_POOL) if count == 1 else 0
    if threads:
        found["threads"] = 1 if options.get("xla_cpu_multi_thread_eigen") == "false" else threads
    return found


def _list_reduced(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, full in _FULL_EFFORT.items():
        if (value := options.get(name, full)) != full:
            yield name, value
    for name, full in _FULL_EFFORT_OF_JAX.items():
        if (value := jax.config.values.get(name, full)) != full:
            yield name, value


def _read_options() -> dict[str, str]:
    """Return XLA's options for a program as XLA prints them: those of JAX's configuration and of XLA_FLAGS.

    Where a version of JAX does not tell, return those of XLA_FLAGS.
    """
    flags = (flag.lstrip("-").partition("=") for flag in os.environ.get("XLA_FLAGS", "").split())
    options = {name: value or "true" for name, _, value in flags}
    with suppress(AttributeError, TypeError):  # not documented
        whole = compiler.get_compile_options(1, 1)  # kept by name: its parts point into it
        build = whole.executable_build_options
        lines = (line.partition(":") for line in str(build.debug_options).splitlines())
        options |= {name: text.strip().strip('"') for name, colon, text in lines if colon and not name.startswith(" ")}
    return options


def _names() -> Iterator[str]:
    for path in Path("/proc/self/task").glob("*/comm"):
        try:
            yield path.read_text().strip()
        except OSError:
            continue  # the thread has ended
