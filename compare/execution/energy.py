"""Measure the energy of a training step, by the GPU's own counter over a window of a few seconds."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compare.machine.nvml import Device

WINDOW_SECONDS = 4.0
"""Seconds of training between two updates of the counter. A driver may update it only every 0.1 s."""

_POLL_SECONDS, _MOST_POLLS = 0.005, 60

_IDLE_SECONDS, _IDLE_WINDOWS, _SETTLED = 2.0, 10, 0.05


@dataclass(frozen=True)
class Energy:
    """The energy of a training step, or the `reason` why it is unknown.

    Attributes:
        joules_per_step: all that the boards draw, including their idle power.
        idle_watts: the power of the boards at rest, or None if it never settles.
        steps: the number of steps in the window.
        seconds: the length of the window.
    """

    joules_per_step: float | None = None
    idle_watts: float | None = None
    steps: int | None = None
    seconds: float | None = None
    reason: str | None = None


def measure(train: Callable[[], int], count: int, idle_watts: float | None = None) -> Energy:
    """Return the energy of `count` GPUs while `train` runs. It returns its number of steps.

    Both figures come from the counter. `nvmlDeviceGetPowerUsage` is an average that includes the last second's work.
    The window begins and ends with an update of the counter, and the wait for the last one counts at idle power. If
    `idle_watts` is None, the idle power is measured first.
    """
    with contextlib.ExitStack() as stack:
        try:
            devices = [stack.enter_context(contextlib.closing(Device(number))) for number in range(count)]
        except Exception as error:
            # NVMLError is the binding's own class, or the binding is missing.
            return Energy(reason=f"no NVML: {error}")
        idle = _measure_idle_watts(devices) if idle_watts is None else idle_watts
        before, start = _await_update(devices), time.monotonic()
        steps = train()
        seconds = time.monotonic() - start
        after = _await_update(devices) if idle is not None else _read_joules(devices)
        waited = time.monotonic() - start - seconds
    if before is None or after is None:
        return Energy(reason="this GPU has no energy counter")
    return Energy((after - before - (idle or 0.0) * waited) / steps, idle, steps, seconds)


def _await_update(devices: Sequence[Device]) -> float | None:
    """Return the joules right after the counters of all devices have changed, or soon if they do not."""
    first = [device.energy_joules() for device in devices]
    for _ in range(_MOST_POLLS):
        if None in first or all(device.energy_joules() != old for device, old in zip(devices, first, strict=True)):
            break
        time.sleep(_POLL_SECONDS)
    return _read_joules(devices)


def _read_joules(devices: Sequence[Device]) -> float | None:
    counters = [device.energy_joules() for device in devices]
    return sum(counter for counter in counters if counter is not None) if None not in counters else None


def _measure_idle_watts(devices: Sequence[Device]) -> float | None:
    """Return the power at rest once it no longer falls, or None if it never settles."""
    watts = math.inf
    for _ in range(_IDLE_WINDOWS):
        before, start = _read_joules(devices), time.monotonic()
        time.sleep(_IDLE_SECONDS)
        after, seconds = _read_joules(devices), time.monotonic() - start
        if before is None or after is None:
            return None
        last, watts = watts, (after - before) / seconds
        if watts > (1 - _SETTLED) * last:
            return watts
    return None
