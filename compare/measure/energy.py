"""Energy of a training step, from the GPU's own counter over a window long enough for it."""

import time
from collections.abc import Callable
from typing import Any

from compare.measure.nvml import Device

WINDOW_SECONDS = 10.0
"""Least time between two readings of the counter, which a driver may renew only every 0.1 s."""

_IDLE_SECONDS, _LOOKS = 1.0, 10


def absent(reason: str) -> dict[str, Any]:
    """Return the figures where there are none."""
    return {"joules_per_step": None, "idle_watts": None, "steps": None, "seconds": None, "reason": reason}


def measure(train: Callable[[], int]) -> dict[str, Any]:
    """Return joules per step while `train` runs (it returns its steps), and the watts drawn just before it.

    The energy is all that the board draws, its idle power included; that is what `idle_watts` is for.
    """
    try:
        device = Device()
    except Exception as error:
        # NVMLError is the binding's own class, or the binding is missing.
        return absent(f"no NVML: {error}")
    try:
        idle = [device.power_watts() for _ in range(_LOOKS) if not time.sleep(_IDLE_SECONDS / _LOOKS)]
        before, start = device.energy_joules(), time.monotonic()
        steps = train()
        after, seconds = device.energy_joules(), time.monotonic() - start
    finally:
        device.close()
    if before is None or after is None:
        return absent("this GPU has no energy counter")
    watts = [value for value in idle if value is not None]
    return {
        "joules_per_step": (after - before) / steps,
        "idle_watts": sum(watts) / len(watts) if watts else None,
        "steps": steps,
        "seconds": seconds,
        "reason": None,
    }
