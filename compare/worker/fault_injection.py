"""Sessions with a fault of known size, for `samestep selftest`."""

import time
from collections.abc import Callable
from typing import Any

from compare.base.interface import Session


class FaultySession:
    """A session that delays every dispatch, with a `wait` that may do nothing.

    Args:
        session: the session that does the work.
        delay: queues work on the device, or keeps the host busy (`compare.base.interface.Backend.delay`).
        apart: wait for every dispatch before the delay, so that a busy host does not run beside the work.
        waits: False leaves out the synchronisation.
    """

    def __init__(self, session: Session, delay: Callable[[], None], *, apart: bool, waits: bool) -> None:
        self.wrapped = session
        self._delay, self._apart, self._waits = delay, apart, waits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def run(self, steps: int) -> None:
        """Train `steps`, one dispatch at a time."""
        unit = self.wrapped.steps_per_dispatch
        for _ in range(0, steps, unit):
            self._delay()
            self.wrapped.run(unit)
            if self._apart:
                self.wrapped.wait()

    def wait(self) -> None:
        """Wait for the device, or pretend to."""
        if self._waits:
            self.wrapped.wait()


def occupy(seconds: float) -> None:
    """Keep the calling thread busy for `seconds`."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:  # not time.sleep, because a core computes more slowly after it has slept
        pass
