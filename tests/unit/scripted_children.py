"""Children that answer as a test says, and the queues of jobs for them."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from compare.base.commands import Command, Greeting
from compare.base.interface import ContenderFailed
from compare.execution import jobs, launcher
from compare.execution.jobs import Call, Job, Queue
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun
from compare.settings import contenders
from tests.fakebackend import plans


@dataclass(frozen=True)
class Scripting(Command[str]):
    """A command with a name of the test's own. Its reply takes so many looks."""

    name: str  # pyright: ignore[reportIncompatibleVariableOverride] -- a real command's name belongs to its class
    looks: int


class Scripted:
    """Stands for a child: an answer takes as many looks as its command says, an import as many as `imports`."""

    pid = 0
    open = 0
    imports: dict[str, int]
    said: list[str]
    environments: list[dict[str, str]]

    def __init__(
        self, name: str, package: str, environment: dict[str, str], folder: Path, share: None, deadline: float
    ) -> None:
        self._name = name
        self._looks = self.imports.get(name, 0)
        self.environments.append(environment)
        Scripted.open += 1

    def has_greeted(self) -> bool:
        return self.has_replied()

    def greet(self) -> Greeting:
        if self.imports:
            self.said.append(f"{self._name} has imported")
        return Greeting(1, "fake", {})

    def send(self, command: "Scripting") -> None:
        self.said.append(f"{self._name} begins {command.name}")
        self._looks = command.looks

    def has_replied(self, _: "Scripting | None" = None) -> bool:
        self._looks -= 1
        return self._looks < 0

    def reply(self, scripting: "Scripting") -> str:
        command = scripting.name
        if command == "broken" or (command in ("crash", "refused") and Scripted.open > 1):
            raise ContenderFailed("refused" if command == "refused" else "crash", "scripted")
        if command == "endless" or (command == "large" and Scripted.open > 1):
            raise ContenderFailed("oom", "scripted")
        first = self.said.count(f"{self._name} begins {command}") == 1
        if command == "boundless" or (command == "long record" and Scripted.open > 1) or (command == "late" and first):
            raise ContenderFailed("refused", "scripted", disk_full=True)
        self.said.append(f"{self._name} ends {command}")
        return command

    def close(self) -> None:
        Scripted.open -= 1
        self.said.append(f"{self._name} is closed")


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    plans.register(monkeypatch, tmp_path)
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 1)
    Scripted.said, Scripted.environments, Scripted.open, Scripted.imports = [], [], 0, {}
    monkeypatch.setattr(launcher, "Child", Scripted)
    monkeypatch.setattr(jobs.time, "sleep", lambda _: None)
    return Launcher(plans.make(tmp_path / "out", ("fake", "other")), tmp_path)


def make_job(answers: list[str], *commands: tuple[str, int]) -> Job:
    return Job("training", [Call(Scripting(name, looks), partial(list.append, answers)) for name, looks in commands])


def queue(name: str, *found: Job) -> Queue:
    return Queue(ContenderRun(contenders.parse(["fake", "other"])[["fake", "other"].index(name)]), list(found))


def execute(started: Launcher, *queues: Queue) -> list[tuple[int, int]]:
    progress: list[tuple[int, int]] = []
    jobs.run_jobs(started, queues, lambda done, total: progress.append((done, total)))
    return progress
