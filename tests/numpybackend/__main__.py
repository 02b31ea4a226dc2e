"""Serve this backend to samestep's runner."""

from compare.worker.server import serve
from tests.numpybackend.backend import BACKEND

serve(BACKEND)
