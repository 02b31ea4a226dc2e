"""What ran during some steps, from torch's own profiler."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType  # torch.autograd has it, and does not export it
from torch.profiler import ProfilerActivity, profile

from compare.base.interface import Kernel

_ARGUMENTS = (
    "correlation",
    "stream",
    "External id",
    "Sequence number",
    "Fwd thread id",
    "Input Dims",
    "Input type",
    "Concrete Inputs",
)
"""The arguments of events that say what launched a kernel, and on which shapes it works."""


def kernels(work: Callable[[], None]) -> list[Kernel]:
    """Return the kernels of this process's GPU during `work`, which has to wait for them (torch.profiler.profile)."""
    if not torch.cuda.is_available():
        work()  # the profiler needs a GPU
        return []
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
    return [
        Kernel(f"cuda:{event.device_index}", event.name, 1e-6 * event.time_range.start, 1e-6 * event.time_range.end)
        for event in profiled.events() or ()
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation  # annotations span kernels and gaps
    ]


def events(work: Callable[[], None]) -> list[dict[str, Any]]:
    """Return the kernels and operations during `work` as `compare.base.profiles.Profile` holds them."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True, acc_events=True) as profiled:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        trace: Any = json.loads(path.read_bytes())
    return [_shorten(event) for event in trace["traceEvents"] if event.get("ph") == "X"]


def _shorten(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event.get("args", {})
    kept = {name: arguments[name] for name in _ARGUMENTS if name in arguments}
    return {
        "name": str(event["name"]),
        "cat": event.get("cat", ""),
        "ts": float(event["ts"]),
        "dur": float(event["dur"]),
        "tid": str(event["tid"]),
        "args": kept,
    }
