"""`samestep` with the fake backends registered: python -m tests.fakebackend.program compare fake other ..."""

import math

from compare import cli, contenders
from compare.measure import voiding
from tests.fakebackend import BACKENDS

contenders.BACKENDS.update(BACKENDS)
voiding.FOREIGN_CORES = math.inf  # scripted time does not mind other programs
cli.main()
