"""What ran during some steps, from JAX's own profiler."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from compare.base.interface import Kernel


def kernels(work: Callable[[], None]) -> list[Kernel]:
    """Return all GPUs' kernels during `work`, which has to wait for them (jax.profiler.trace)."""
    return [
        Kernel(plane.name, event.name, 1e-9 * event.start_ns, 1e-9 * (event.start_ns + event.duration_ns))
        for profile in _profile(work)
        for plane in profile.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if _is_stream(line.name)
        for event in line.events
    ]


def events(work: Callable[[], None]) -> list[dict[str, Any]]:
    """Return the kernels and operations during `work` as `compare.base.profiles.Profile` holds them.

    A GPU's kernels and a CPU's operations have the category `kernel`, and name their instruction of XLA's program.
    """
    found: list[dict[str, Any]] = []
    for profile in _profile(work):
        for plane in profile.planes:
            on_gpu = plane.name.startswith("/device:GPU")
            for line in plane.lines:
                if on_gpu and not _is_stream(line.name):
                    continue
                for event in line.events:
                    stats = {str(name): value for name, value in event.stats if name in ("hlo_op", "hlo_module")}
                    if on_gpu or "hlo_op" in stats:
                        found.append(
                            {
                                "name": event.name,
                                "cat": "kernel",
                                "ts": 1e-3 * event.start_ns,
                                "dur": 1e-3 * event.duration_ns,
                                "tid": line.name,
                                "args": {name: str(value) for name, value in stats.items()},
                            }
                        )
    return found


def _profile(work: Callable[[], None]) -> list[Any]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it would slow the steps down
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            work()
        return [jax.profiler.ProfileData.from_file(str(path)) for path in Path(folder).rglob("*.xplane.pb")]


def _is_stream(line: str) -> bool:
    """Tell whether a line of a GPU's plane holds kernels. Other lines repeat these by module and by operation."""
    return line.startswith("Stream")
