"""Importing this lets the process know the fake backends, for programs that tests start: `pytest -p` takes it, too."""

import math

from compare import contenders
from compare.measure import voiding
from tests.fakebackend import BACKENDS

contenders.BACKENDS.update(BACKENDS)
voiding.FOREIGN_CORES = math.inf  # scripted time does not mind other programs
