"""Serve this backend to samestep's runner."""

from compare.worker.server import serve
from jaxbackend.backend import BACKEND, CREW

serve(BACKEND, crew=CREW)
