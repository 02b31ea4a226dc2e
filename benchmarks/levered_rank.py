"""A further process of torch's contender, changed as the first one is: `benchmarks.step_time --lever` starts it."""

import os

from benchmarks.levers import LEVER_VARIABLE, LEVERS
from compare.worker import serve
from torchbackend.backend import BACKEND, CREW

LEVERS[os.environ[LEVER_VARIABLE]]()
serve(BACKEND, crew=CREW)
