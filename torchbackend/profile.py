"""Kernels of a GPU, from torch's own profiler."""

from collections.abc import Callable

import torch
from torch._C._autograd import DeviceType  # torch.autograd has it, and does not export it
from torch.profiler import ProfilerActivity, profile

from compare.base.interface import Kernel


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
