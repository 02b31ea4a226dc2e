"""Serve this backend to samestep's runner."""

from compare.worker import serve
from torchbackend.session import BACKEND

serve(BACKEND)
