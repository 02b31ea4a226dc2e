"""Ctrl-C and signals that end the program, held back while what was measured is put together and written."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

ENDING = (KeyboardInterrupt, SystemExit)
"""What Ctrl-C and the program's handlers of other signals raise."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldSignals:
    """Holds signals back within its `with` block, from `begin` on.

    `pending` is what is to be raised when all is written: what the first of them would have raised, or `keep` was told.
    Only handlers of Python's in the main thread can be held back: elsewhere, before the block and after it, this does
    nothing.
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

    def begin(self) -> None:
        """Hold back what comes from now on."""
        for number in _SIGNALS if self._is_entered else ():
            handler = signal.getsignal(number)
            if callable(handler) and number not in self._handlers:
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def keep(self, ending: BaseException) -> None:
        """Keep for later what was raised before, or while signals were let through, unless there is something."""
        self.pending = self.pending or ending

    @contextmanager
    def let_through(self) -> Generator[None]:
        """Hold nothing back meanwhile; what has been held back is raised at once."""
        was_holding = bool(self._handlers)
        self._restore()
        try:
            if self.pending is not None:
                raise self.pending
            yield
        finally:
            if was_holding:
                self.begin()

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handlers[signal.Signals(number)](number, frame)
        except ENDING as ending:
            self.keep(ending)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
