"""Work and memory of a known size, with which `samestep selftest` checks measurements."""

import time
from collections.abc import Callable
from typing import Any

import torch

_FIRST_CYCLES = 10_000_000


def delay(seconds: float, device: str) -> Callable[[], None] | None:
    """Return a function that queues so many seconds of work on the GPU and does not wait for it.

    The work is one thread that counts clock cycles (torch.cuda._sleep). None on a CPU.
    """
    if device != "cuda":
        return None
    cycles = _FIRST_CYCLES
    for _ in range(3):
        cycles = round(cycles * seconds / _duration(cycles))
    return lambda: torch.cuda._sleep(cycles)


def ballast(size: int, device: str) -> Any:
    """Return an object that holds `size` bytes of device memory. Every page is written."""
    held = torch.ones(size, dtype=torch.uint8, device=device)
    if device == "cuda":
        torch.cuda.synchronize()
    return held


def _duration(cycles: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    return time.perf_counter() - start
