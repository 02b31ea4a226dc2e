"""Serve this backend to samestep's runner."""

from compare.worker import local_ranks

# Torch has a process a device, where jax has one for all. They import torch while this process does.
local_ranks.begin("torchbackend")

from compare.worker.server import serve  # noqa: E402 -- an import takes seconds, so the others start first
from torchbackend.backend import BACKEND, PROCESS_GROUP  # noqa: E402 -- this is the import that takes seconds

serve(BACKEND, process_group=PROCESS_GROUP)
