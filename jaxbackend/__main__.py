"""Serve this backend to samestep's runner."""

from compare.worker import serve
from jaxbackend.session import BACKEND

serve(BACKEND)
