"""Hold back Ctrl-C and signals that end the program, while the result is put together and written."""

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

ENDING = (KeyboardInterrupt, SystemExit)
"""The exceptions that Ctrl-C and the program's handlers of other signals raise."""

REPORTED = "samestep has reported this interruption"
"""A note of an exception whose interruption has a message already."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)

_SHORTEST_SECONDS = 1e-3
"""The shortest time to an alarm. 0 would set none."""


class TimeOver(KeyboardInterrupt):
    """The time of an `end_after` block is over. Within it, this is handled as Ctrl-C is."""


@contextmanager
def end_after(seconds: float) -> Generator[None]:
    """Raise TimeOver in the `with` block when it has lasted so many seconds.

    Only the main thread can be interrupted so. Elsewhere this does nothing. An alarm of the caller is set again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TimeOver

    begin, handler = time.monotonic(), signal.signal(signal.SIGALRM, end)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, _SHORTEST_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            passed = time.monotonic() - begin
            signal.setitimer(signal.ITIMER_REAL, max(outer - passed, _SHORTEST_SECONDS))


class HeldSignals:
    """Holds signals back within its `with` block, from the call of `hold` on.

    Only Python's handlers in the main thread can be held back. Elsewhere, and outside the block, this does nothing.

    Attributes:
        pending: the exception to raise when everything is written: the first that was held back or remembered.
    """

    def __init__(self) -> None:
        self.pending: BaseException | None = None
        self._is_entered = False
        self._handlers: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> Self:
        self._is_entered = threading.current_thread() is threading.main_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        self._is_entered = False

    def hold(self) -> None:
        """Hold back signals from now on."""
        for number in _SIGNALS if self._is_entered else ():
            handler = signal.getsignal(number)
            if callable(handler) and number not in self._handlers:
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def remember(self, ending: BaseException) -> None:
        """Keep an exception for later, unless another one is kept already."""
        self.pending = self.pending or ending

    @contextmanager
    def let_through(self) -> Generator[None]:
        """Hold nothing back in the `with` block, and raise at once what was held back before."""
        was_holding = bool(self._handlers)
        self._restore()
        try:
            if self.pending is not None:
                raise self.pending
            yield
        finally:
            if was_holding:
                self.hold()

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handlers[signal.Signals(number)](number, frame)
        except ENDING as ending:
            self.remember(ending)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
