"""`samestep` with the fake backends registered: python -m tests.fakebackend.program compare fake other ..."""

import tests.fakebackend.registered  # noqa: F401 -- registers them
from compare.cli import app

app.main()
