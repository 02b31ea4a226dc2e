"""The bandwidth and the dense peak that simple loops reach on a device, in torch."""

import time
from collections.abc import Callable
from typing import Any

import torch

from compare.base.profiles import Peaks
from torchbackend.precision import Policy

_SIDES = {"cpu": 1536, "cuda": 8192}
_BYTES = {"cpu": 2**27, "cuda": 2**30}
_REPEATS, _TRIES = 4, 4


def measure(policy: Policy, device: torch.device) -> Peaks:
    """Return the peaks of a device at a precision: of a large copy, and of a large product of matrices."""
    side, size = _SIDES[device.type], _BYTES[device.type]
    with policy.scope(), torch.no_grad():
        seconds = _time_copy(size, device)
        matrix = torch.ones((side, side), dtype=policy.compute_dtype, device=device)
        return Peaks(2 * size / seconds, 2 * side**3 / _time(lambda: matrix @ matrix, device))


def _time_copy(size: int, device: torch.device) -> float:
    values = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(values)
    return _time(lambda: target.copy_(values), device)


def _time(function: Callable[[], Any], device: torch.device) -> float:
    """Return the least seconds of one call."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    function()
    wait()
    tries = list[float]()
    for _ in range(_TRIES):
        start = time.perf_counter()
        for _ in range(_REPEATS):
            function()
        wait()
        tries.append((time.perf_counter() - start) / _REPEATS)
    return min(tries)
