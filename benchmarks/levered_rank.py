"""A further process of torch's contender, changed as the first one is: `benchmarks.step_time --lever` starts it."""

import importlib
import os

from benchmarks.levers import LEVER_VARIABLE, LEVERS
from compare.worker.server import serve

for lever in os.environ[LEVER_VARIABLE].split():
    LEVERS[lever]()
backend = importlib.import_module("torchbackend.backend")  # after the change: it takes hold of what others define
serve(backend.BACKEND, process_group=backend.PROCESS_GROUP)
