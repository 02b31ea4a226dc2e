"""Pairs certified inside this process: the same commands, carried out by the same worker, no framework started anew."""

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compare import judgement, launcher, plan, runner, worker
from compare.interface import Backend, ContenderFailed
from compare.pairing.asked import Request
from compare.worker import Worker
from compare.workloads import Workload


class Inside:
    """Stands for `compare.child.Child`: what is asked of it is done at once, here."""

    pid = 0

    def __init__(self, name: str, package: str, environment: Mapping[str, str], folder: Path) -> None:
        del name, environment, folder
        self._backend: Backend = importlib.import_module(f"{package}.session").BACKEND
        self._worker = Worker(self._backend, time.perf_counter)
        self._answers: list[dict[str, Any]] = []

    def greet(self, deadline: float) -> dict[str, Any]:
        del deadline
        return {"versions": self._backend.versions()}

    def send(self, command: str, **arguments: Any) -> None:
        message = {"command": command, **arguments}
        self._answers.append(worker._answer(self._backend, self._worker, message))

    def reply(self, command: str, deadline: float) -> Any:
        del deadline
        answer = self._answers.pop(0)
        if "error" in answer:
            raise ContenderFailed(answer["error"]["status"], f"{command}: {answer['error']['reason']}")
        return answer["value"]

    def call(self, command: str, deadline: float, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.reply(command, deadline)

    def close(self) -> None:
        pass


def children(patch: pytest.MonkeyPatch) -> None:
    """Have every child that is started from now on be inside this process."""
    patch.setattr(launcher, "Child", Inside)


def agree(
    workload: Workload, folder: Path, patch: pytest.MonkeyPatch, request: Request | None = None, **settings: Any
) -> dict[str, Any]:
    """Return the result of `samestep agree` on a pair, in float64 and with the plainest tunings."""
    children(patch)
    chosen = plan.make(
        ["torch:stock", "jax"],
        out=folder,
        workload=workload,
        request=request,
        **({"precision": "float64", "device": "cpu", "rounds": None, "batch_size": 8} | settings),
    )
    outcomes = runner.agree(chosen, 2, lambda *_: None)
    return judgement.result(chosen, outcomes, ["tests"])
