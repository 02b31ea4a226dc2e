"""Measure the energy of a training step, by the GPU's own counter over a window of a few seconds."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compare.machine.nvml import Device

WINDOW_SECONDS = 1.0
"""Seconds of training. A driver updates the counter every 0.02 to 0.1 s, and both ends are updates, seen to 5 ms."""

POLL_SECONDS = 0.005

_MOST_POLLS = 60

_IDLE_SECONDS, _IDLE_WINDOWS, _SETTLED = 0.5, 40, 0.0125

Look = Callable[[], None]
"""Reads the counters. It must be called every `POLL_SECONDS` during the training."""


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


class _Counter:
    """The counter of one GPU: when it changed, and its joules then."""

    def __init__(self, device: Device) -> None:
        self._device, self._last = device, device.energy_joules()
        self.updates = list[tuple[float, float]]()

    @property
    def is_there(self) -> bool:
        """Whether the GPU has a counter."""
        return self._last is not None

    def look(self) -> None:
        """Note an update, if there is a new one."""
        joules = self._device.energy_joules()
        if joules is not None and joules != self._last:
            self._last = joules
            self.updates.append((time.monotonic(), joules))

    def compute_watts(self) -> float | None:
        """Return the mean power between the first and the last update, or None if there are not two."""
        if len(self.updates) < 2:
            return None
        (start, before), (end, after) = self.updates[0], self.updates[-1]
        return (after - before) / (end - start)


def measure(train: Callable[[Look], int], count: int, idle_watts: float | None = None) -> Energy:
    """Return the energy of `count` GPUs while `train` runs. It calls its argument often, and returns its steps.

    Both figures come from the counter. `nvmlDeviceGetPowerUsage` is an average that includes the last second's work.
    The mean power is that between two updates during the training. If `idle_watts` is None, the idle power is measured
    first.
    """
    with contextlib.ExitStack() as stack:
        try:
            devices = [stack.enter_context(contextlib.closing(Device(number))) for number in range(count)]
        except Exception as error:
            # NVMLError is the binding's own class, or the binding is missing.
            return Energy(reason=f"no NVML: {error}")
        counters = [_Counter(device) for device in devices]
        if not all(counter.is_there for counter in counters):
            return Energy(reason="this GPU has no energy counter")
        idle = _measure_idle_watts(devices) if idle_watts is None else idle_watts

        def look() -> None:
            for counter in counters:
                counter.look()

        start = time.monotonic()
        steps = train(look)
        seconds = time.monotonic() - start
    watts = [counter.compute_watts() for counter in counters]
    known = [power for power in watts if power is not None]
    if len(known) < len(watts):
        return Energy(None, idle, reason="the energy counter did not change twice during the training")
    return Energy(sum(known) * seconds / steps, idle, steps, seconds)


def _measure_idle_watts(devices: Sequence[Device]) -> float | None:
    """Return the power at rest once it no longer falls, or None if it never settles. Windows end with updates."""
    watts, before, start = math.inf, _await_update(devices), time.monotonic()
    for _ in range(_IDLE_WINDOWS):
        time.sleep(_IDLE_SECONDS)
        after, end = _await_update(devices), time.monotonic()
        if before is None or after is None:
            return None
        last, watts = watts, (after - before) / (end - start)
        if watts > (1 - _SETTLED) * last:
            return watts
        before, start = after, end
    return None


def _await_update(devices: Sequence[Device]) -> float | None:
    """Return the joules right after the counters of all devices have changed, or soon if they do not."""
    first = [device.energy_joules() for device in devices]
    for _ in range(_MOST_POLLS):
        if None in first or all(device.energy_joules() != old for device, old in zip(devices, first, strict=True)):
            break
        time.sleep(POLL_SECONDS)
    counters = [device.energy_joules() for device in devices]
    return sum(counter for counter in counters if counter is not None) if None not in counters else None
