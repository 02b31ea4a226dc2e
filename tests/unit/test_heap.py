"""Freed memory that is kept needs no new pages."""

import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys
import numpy as np
from compare import heap

if sys.argv[1] == "kept":
    heap.keep_freed()
np.ones(2**25)  # the heap grows once
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    np.ones(2**25)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", _FAULTS, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux distributions")
def test_memory_that_is_kept_is_not_asked_for_again():
    assert faults("kept") < 50 < faults("given back")
