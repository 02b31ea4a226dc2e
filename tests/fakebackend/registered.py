"""Importing this lets the process know the fake backends, for programs that tests start: `pytest -p` takes it, too."""

import math
from typing import Any

from compare.certificates import certification
from compare.measure import voiding
from compare.tuning import contenders, knobs
from tests.fakebackend import BACKENDS

ways: Any = knobs.PARALLEL
ways.update(dict.fromkeys(BACKENDS, ("ddp",)))
contenders.BACKENDS.update(BACKENDS)
certification.MOST_CHILDREN = {"cpu": 1}  # on every machine the same, because scripts number a backend's processes
voiding.FOREIGN_CORES = math.inf  # scripted time does not mind other programs
