"""Freed memory that is kept needs no new pages, and is given back in the end."""

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compare.agreement.measures import Updates
from compare.worker import process_memory, recording, training
from compare.worker.worker import Worker
from tests.parity import twins

_COUNTED = """
import contextlib, resource, sys
import numpy as np
import psutil
from compare.worker import process_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = sys.argv[1] == "kept"
start = psutil.Process().memory_info().rss
with process_memory.reuse_memory() if kept else contextlib.nullcontext():
    np.ones(2**25)  # the heap grows once
    before = faults()
    for _ in range(3):
        np.ones(2**25)
    print(faults() - before, psutil.Process().memory_info().rss - start)
print(psutil.Process().memory_info().rss - start)
"""
_ARRAY = 2**28


def counted(mode: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", _COUNTED, mode], capture_output=True, text=True, check=True)
    return [int(each) for each in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux distributions")
def test_memory_that_is_kept_is_not_asked_for_again_and_given_back_in_the_end():
    faults, held, after = counted("kept")
    assert faults < 50 < counted("given back")[0]
    assert held > 0.9 * _ARRAY > 9 * after


def noted(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    """Have `done` say when freed memory is kept, and when no longer."""

    @contextlib.contextmanager
    def kept() -> Generator[None]:
        done.append("kept")
        yield
        done.append("given back")

    monkeypatch.setattr(process_memory, "reuse_memory", kept)


@pytest.mark.parametrize(
    ("command", "function", "arguments"),
    [("record", "record", {"path": "record"}), ("noise", "measure_noise", {"perturbations": []})],
)
def test_a_child_that_records_keeps_what_it_frees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, function: str, arguments: dict[str, Any]
):
    monkeypatch.chdir(tmp_path)  # a record that fails is deleted
    done = list[str]()
    noted(monkeypatch, done)
    monkeypatch.setattr(recording, function, lambda *_, **__: done.append(command) or [])
    worker = Worker(twins.BACKENDS["torch"], lambda: 0.0)
    getattr(worker, command)(twins.spec("torch"), steps=1, **arguments)
    assert done == ["kept", command, "given back"]


def test_a_child_that_repeats_its_update_keeps_what_it_frees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = list[str]()
    noted(monkeypatch, done)
    found = Updates({"dense.bias": np.ones(2)}, {"dense.bias": 1.0})
    monkeypatch.setattr(training, "measure_updates", lambda *_: done.append("update") or found)
    worker = Worker(twins.BACKENDS["torch"], lambda: 0.0)
    held: Any = SimpleNamespace()
    worker._session = worker._spec = worker._train = held
    assert worker.update(1, str(tmp_path / "update"), 0.0, 1) == found.noise
    assert done == ["kept", "update", "given back"]


def test_an_export_of_a_proof_is_measured_against_that_of_another_state_which_had_its_memory(
    monkeypatch: pytest.MonkeyPatch,
):
    now, exports, done = [0.0], iter([0.5, 0.1, 0.4]), list[str]()

    def ran(steps: int) -> None:
        done.append("run")
        now[0] += steps

    def exported() -> Any:
        if done[-1] != "export":  # JAX keeps an array's copy on the host
            now[0] += next(exports)
        done.append("export")
        return SimpleNamespace(step=done.count("run"))

    session: Any = SimpleNamespace(
        steps_per_dispatch=1, run=ran, wait=lambda: None, losses=lambda: np.zeros(3), export=exported
    )
    noted(monkeypatch, done)
    worker = Worker(twins.BACKENDS["torch"], lambda: now[0])
    worker._session = session
    proof = worker.proof(1)
    assert (proof.block_seconds, proof.unwaited_seconds) == (1.0, pytest.approx(0.3))
    assert (proof.dispatched, proof.exported) == (3, 3)
    assert done == ["kept", *["run", "export"] * 3, "given back"]
