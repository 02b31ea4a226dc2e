"""Kernels of a GPU, from JAX's own profiler."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from compare.base.interface import Kernel


def kernels(work: Callable[[], None]) -> list[Kernel]:
    """Return all GPUs' kernels during `work`, which has to wait for them (jax.profiler.trace)."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            work()
        profiles = [jax.profiler.ProfileData.from_file(str(path)) for path in Path(folder).rglob("*.xplane.pb")]
    return [
        Kernel(plane.name, event.name, 1e-9 * event.start_ns, 1e-9 * (event.start_ns + event.duration_ns))
        for profile in profiles
        for plane in profile.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")  # other lines repeat these by module and by operation
        for event in line.events
    ]
