"""How a contender in several processes ends when one of them does: its status and the reason."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from compare.data import Dataset, store, synthetic
from compare.interface import ContenderFailed
from compare.processes import family
from compare.processes.child import Child
from tests.fakebackend import plans


class Contender:
    """A contender in two processes, scripted as `tests.fakebackend.crew` says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._children = folder, list[Child]()
        train, test = synthetic.make((8, 8, 1), classes=10, seed=1, train=16, test=8)
        store.save(Dataset(train, test, "synthetic"), folder / "data.safetensors")

    def failure(self, first: str, second: str) -> ContenderFailed:
        """Return how a timed block fails whose second process ends."""
        script = json.dumps({"first": first, "second": second, "folder": str(self.folder)})
        variables = plans.environment(self.folder, {}) | {"SAMESTEP_CREW": script}
        child = Child("crew", "tests.fakebackend.crew", variables, self.folder)
        self._children.append(child)
        child.greet(60)
        child.call("open", 60, spec=self._spec())
        others = psutil.Process(child.pid).children(recursive=True)
        with pytest.raises(ContenderFailed) as caught:
            child.call("block", 30, steps=1)
        assert not plans.remaining([child.pid, *(each.pid for each in others)])
        return caught.value

    def close(self) -> None:
        for child in self._children:
            child.close()

    def _spec(self) -> dict[str, Any]:
        return {
            "workload": "digits-cnn",
            "precision": "float32",
            "device": "cpu",
            "batch_size": 8,
            "seed": 1,
            "knobs": {"parallel": "ddp"},
            "epochs": 1,
            "data": str(self.folder / "data.safetensors"),
            "devices": 2,
        }


@pytest.fixture
def contender(tmp_path: Path) -> Generator[Contender]:
    found = Contender(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("first", ["wait", "fail", "end"])
@pytest.mark.parametrize(
    ("second", "status", "said"),
    [
        ("out of memory", "oom", "rank 1 of 2: MemoryError: no more of it"),
        ("refuse", "refused", "rank 1 of 2: no such thing"),
        ("kernel", "oom", "rank 1 of 2: killed by the kernel because memory ran out"),
        ("kill", "crash", "rank 1 of 2: killed by signal 9 (SIGKILL)"),
        ("exit", "crash", "rank 1 of 2: ended with exit code 7"),
    ],
)
def test_a_contender_ends_as_the_process_that_ended_did(
    contender: Contender, first: str, second: str, status: str, said: str
) -> None:
    failure = contender.failure(first, second)
    assert failure.status == status
    assert said in failure.reason


@pytest.mark.parametrize(
    ("code", "before", "status", "reason"),
    [
        (family.EXIT_CODES["oom"], 3, "oom", "ended because memory ran out"),
        (family.EXIT_CODES["refused"], 3, "refused", "ended because it refused what it was asked"),
        (1, 3, "crash", "ended with exit code 1"),
        (-9, 2, "oom", "killed by the kernel because memory ran out"),
        (-9, 3, "crash", "killed by signal 9 (SIGKILL)"),
        (-11, 2, "crash", "killed by signal 11 (SIGSEGV)"),
    ],
)
def test_an_exit_code_tells_how_a_process_ended(
    monkeypatch: pytest.MonkeyPatch, code: int, before: int, status: str, reason: str
) -> None:
    monkeypatch.setattr(family, "kernel_kills", lambda: 3)
    assert family.ending(code, before) == (status, reason)
