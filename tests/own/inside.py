"""samestep inside this process: workers execute commands here, and no framework is imported again."""

import contextlib
import importlib
import io
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from torch.nn import functional

from compare.base.commands import Command, Greeting
from compare.base.interface import Arrays, Backend, ContenderFailed
from compare.base.workloads import Workload
from compare.cli import app
from compare.data import dataset_file, weights
from compare.execution import certificate_cases, initial_values, launcher, prepare_pair, trajectories
from compare.settings import plan
from compare.settings.options import Settings
from compare.settings.pair_spec import Request
from compare.worker import server, user_files
from compare.worker.worker import Worker
from tests.fakebackend.plans import ROOT


class Inside:
    """Replaces `compare.execution.child.Child`: it executes each command at once, in this process."""

    pid = 0

    def __init__(self, name: str, package: str, environment: Mapping[str, str], folder: Path, *_: object) -> None:
        del name, environment, folder
        self._backend: Backend = importlib.import_module(f"{package}.backend").BACKEND
        self._worker = Worker(self._backend, time.perf_counter)
        self._answers: list[dict[str, Any]] = []

    def has_greeted(self) -> bool:
        return True

    def greet(self) -> Greeting:
        return Greeting(1, self._backend.name, self._backend.versions())

    def send(self, command: Command[Any]) -> None:
        self._answers.append(server._answer(self._backend, self._worker, command.message()))

    def has_replied(self, command: Command[Any]) -> bool:
        del command
        return True

    def reply(self, command: Command[Any]) -> Any:
        answer = self._answers.pop(0)
        if "error" in answer:
            raise ContenderFailed(
                answer["error"]["status"], f"{command.name}: {answer['error']['reason']}", raised=True
            )
        return command.read_reply(answer["value"])

    def call(self, command: Command[Any]) -> Any:
        self.send(command)
        return self.reply(command)

    def close(self) -> None:
        pass


def run(*arguments: str, case: int = 0, initial: bool = False) -> CompletedProcess[str]:
    """Run `samestep` in the repository's root without training runs, at one case: 0 is the given case, 1 the other.

    With `initial`, also compare initial values.
    """
    out, error = io.StringIO(), io.StringIO()
    with _quick(case, initial) as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", ["samestep", *arguments])
        try:
            app.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return CompletedProcess(arguments, code, out.getvalue(), error.getvalue())


def own_weights(workload: Workload, request: Request, folder: Path) -> Arrays:
    """Return the weights, under neutral names, that training of a pair starts from."""
    with _quick(case=0) as patch:
        patch.chdir(ROOT)
        out = folder / "out"
        chosen = plan.make(
            Settings(
                contenders=["torch", "jax"], out=out, workload=workload, timed=False, device="cpu", request=request
            )
        )
        dataset_file.save(chosen.dataset, launcher.Launcher(chosen, folder).dataset)
        resolved, _ = prepare_pair.resolve(chosen, folder)
        return weights.load(str(resolved.weights))


@contextlib.contextmanager
def _quick(case: int, initial: bool = False) -> Iterator[pytest.MonkeyPatch]:
    every = certificate_cases.make_adversarial_cases
    user_files.watch_files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "Child", Inside)
        patch.setattr(user_files, "_opened", {""})  # files of earlier tests are no files of this model
        patch.setattr(trajectories, "make_training_jobs", lambda *_: {})
        patch.setattr(trajectories, "judge", lambda *_: None)
        if not initial:
            patch.setattr(initial_values, "make_jobs", lambda *_: {})
        for name in ("scaled_dot_product_attention", *(name for name in vars(functional) if "dropout" in name)):
            patch.setattr(functional, name, getattr(functional, name))  # a child switches them off for good
        patch.setenv("COLUMNS", "400")
        patch.setattr(certificate_cases, "make_adversarial_cases", lambda plan: (every(plan)[case],))
        yield patch
