"""Serve this backend to samestep's runner."""

from compare.machines import ranks

ranks.begin("torchbackend")

from compare.worker import serve  # noqa: E402 -- an import takes seconds, and other processes make it meanwhile
from torchbackend.backend import BACKEND, CREW  # noqa: E402

serve(BACKEND, crew=CREW)
