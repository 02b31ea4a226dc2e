"""`samestep` with the fake backends registered: python -m tests.fakebackend.program compare fake other ..."""

from compare import cli, contenders
from tests.fakebackend import BACKENDS

contenders.BACKENDS.update(BACKENDS)
cli.main()
