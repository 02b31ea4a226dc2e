"""Serve this backend to samestep's runner."""

import os

from compare.machine.variables import COMPILES
from compare.worker import local_ranks, quick_import

# Torch has a process a device, where jax has one for all. They import torch while this process does.
local_ranks.begin("torchbackend")

with quick_import.collect_once():  # it takes seconds, so the others start first
    from compare.worker.server import serve
    from torchbackend.backend import BACKEND, PROCESS_GROUP
    from torchbackend.only.programs import inductor_compiler

    if os.environ.get(COMPILES):
        inductor_compiler()

serve(BACKEND, process_group=PROCESS_GROUP)
