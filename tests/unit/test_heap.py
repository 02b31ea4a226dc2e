"""Freed memory that is kept needs no new pages."""

import subprocess
import sys
from typing import Any

import pytest

from compare import heap, recording
from compare.worker import Worker
from tests.parity import twins

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


@pytest.mark.parametrize(("command", "arguments"), [("record", {"path": ""}), ("noise", {"perturbations": []})])
def test_a_child_that_records_keeps_what_it_frees(
    monkeypatch: pytest.MonkeyPatch, command: str, arguments: dict[str, Any]
):
    done = list[str]()
    monkeypatch.setattr(heap, "keep_freed", lambda: done.append("kept"))
    monkeypatch.setattr(recording, command, lambda *_: done.append(command))
    worker = Worker(twins.BACKENDS["torch"], lambda: 0.0)
    getattr(worker, command)(twins.spec("torch").to_json(), steps=1, **arguments)
    assert done == ["kept", command]
