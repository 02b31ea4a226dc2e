"""Serve this backend to samestep's runner."""

import os

from compare.machine.variables import COMPILES
from compare.worker import local_ranks

# Torch has a process a device, where jax has one for all. They import torch while this process does.
local_ranks.begin("torchbackend")

from compare.worker.server import serve  # noqa: E402 -- an import takes seconds, so the others start first
from torchbackend.backend import BACKEND, PROCESS_GROUP  # noqa: E402 -- this is the import that takes seconds
from torchbackend.only.programs import inductor_compiler  # noqa: E402 -- as above

if os.environ.get(COMPILES):
    inductor_compiler()

serve(BACKEND, process_group=PROCESS_GROUP)
