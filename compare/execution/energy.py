"""Energy of a training step, from the GPU's own counter over a window long enough for it."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from compare.machine.nvml import Device

WINDOW_SECONDS = 10.0
"""Least time between two readings of the counter, which a driver may renew only every 0.1 s."""

_IDLE_SECONDS, _IDLE_WINDOWS, _SETTLED = 2.0, 10, 0.05


def absent(reason: str) -> dict[str, Any]:
    """Return the figures where there are none."""
    return {"joules_per_step": None, "idle_watts": None, "steps": None, "seconds": None, "reason": reason}


def measure(train: Callable[[], int], count: int) -> dict[str, Any]:
    """Return joules per step of `count` GPUs while `train` runs (it returns its steps), and their watts at rest.

    The energy is all that the boards draw, its idle power included; that is what `idle_watts` is for. Both come from
    the counter: `nvmlDeviceGetPowerUsage` is an average that still has the last second's work in it.
    """
    with contextlib.ExitStack() as stack:
        try:
            devices = [stack.enter_context(contextlib.closing(Device(number))) for number in range(count)]
        except Exception as error:
            # NVMLError is the binding's own class, or the binding is missing.
            return absent(f"no NVML: {error}")
        idle = _at_rest(devices)
        before, start = _joules(devices), time.monotonic()
        steps = train()
        after, seconds = _joules(devices), time.monotonic() - start
    if before is None or after is None:
        return absent("this GPU has no energy counter")
    return {
        "joules_per_step": (after - before) / steps,
        "idle_watts": idle,
        "steps": steps,
        "seconds": seconds,
        "reason": None,
    }


def _joules(devices: Sequence[Device]) -> float | None:
    counters = [device.energy_joules() for device in devices]
    return sum(each for each in counters if each is not None) if None not in counters else None


def _at_rest(devices: Sequence[Device]) -> float | None:
    """Return the watts drawn while nothing runs, when they no longer fall; None where they never settle."""
    drawn = math.inf
    for _ in range(_IDLE_WINDOWS):
        before, start = _joules(devices), time.monotonic()
        time.sleep(_IDLE_SECONDS)
        after, seconds = _joules(devices), time.monotonic() - start
        if before is None or after is None:
            return None
        last, drawn = drawn, (after - before) / seconds
        if drawn > (1 - _SETTLED) * last:
            return drawn
    return None
