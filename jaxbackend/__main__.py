"""Serve this backend to samestep's runner."""

from compare.worker.server import serve
from jaxbackend.backend import BACKEND, PROCESS_GROUP
from jaxbackend.only import whole_programs

whole_programs.publish()
serve(BACKEND, process_group=PROCESS_GROUP)
