"""Importing this lets the process know the fake backends, for programs that tests start: `pytest -p` takes it, too."""

import math
import os
from typing import Any

from compare.base import process_family
from compare.execution import ready_children, record_certificates, round_validity
from tests.fakebackend import entries, fork_server

for table, name, value in entries():
    table[name] = value
record_certificates.MOST_CHILDREN = {
    "cpu": 1
}  # on every machine the same, because scripts number a backend's processes
if "SAMESTEP_FORKS" in os.environ:
    shim: Any = fork_server.Subprocess()
    process_family.subprocess = shim
ready_children.count_at_once = lambda processes: 0  # for the same numbers, too
round_validity.FOREIGN_CORES = math.inf  # scripted time does not mind other programs
