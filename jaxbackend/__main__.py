"""Serve this backend to samestep's runner."""

from compare.worker import quick_import

with quick_import.collect_once():
    from compare.worker.server import serve
    from jaxbackend.backend import BACKEND, PROCESS_GROUP
    from jaxbackend.only import whole_programs

whole_programs.publish()
serve(BACKEND, process_group=PROCESS_GROUP)
