"""`samestep` with the fake backends registered: python -m tests.fakebackend.program compare fake other ..."""

import signal

from compare.cli.exit_codes import end_at_once

before = signal.getsignal(signal.SIGINT)
if before is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_at_once)

import tests.fakebackend.registered  # noqa: E402, F401 -- registers them
from compare.cli import app  # noqa: E402

signal.signal(signal.SIGINT, before)
app.main()
