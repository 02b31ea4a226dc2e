"""Serve this backend to samestep's runner."""

from compare.worker import serve
from torchbackend.backend import BACKEND, CREW

serve(BACKEND, crew=CREW)
