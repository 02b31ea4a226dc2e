"""A certificate whose records come in as a test says, and the disk and memory that it has."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from compare.agreement import certificate
from compare.agreement.certificate import Certificate
from compare.base import commands
from compare.base.commands import MeasureNoise
from compare.base.records import Record
from compare.data import dataset_file
from compare.execution import certificate_cases, jobs, judge_certificates, record_certificates
from compare.execution.certificate_cases import Case
from compare.execution.jobs import Queue
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from tests.fakebackend import plans

FIRST, SECOND = CASES = (Case(8, None), Case(4, None))
FAKE, OTHER, THIRD = "fake", "other", "third"
Look = Callable[[], None]


RECORDING = (commands.Record, MeasureNoise)


class AtOnce(Executor):
    """Does what it is given in the thread that gives it."""

    def __init__(self, _: int) -> None: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()
        future.set_result(fn(*args, **kwargs))
        return future


class Certified:
    """A certificate of three contenders that are recorded, case by case, in the order that a test says."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        precision: str = "bfloat16",
        deterministic: bool = False,
    ) -> None:
        plans.register(monkeypatch, folder)
        plan = plans.make(folder / "out", (FAKE, OTHER, THIRD), precision=precision, deterministic=deterministic)
        self._launcher = Launcher(plan, folder)
        self.outcomes = RunState(plan, [ContenderRun(contender) for contender in plan.contenders])
        self._monkeypatch = monkeypatch
        self._owners: dict[str, str] = {}
        self._queues: dict[str, Queue] = {}
        self.frees: Callable[[], bool] = lambda: False
        monkeypatch.setattr(record_certificates, "ThreadPoolExecutor", AtOnce)
        monkeypatch.setattr(certificate, "judge", lambda *_, **__: Certificate((), None))
        monkeypatch.setattr(Record, "load", lambda _: {})
        monkeypatch.setattr(certificate, "combine", lambda _: Certificate((), None))
        dataset_file.save(plan.dataset, self._launcher.dataset)

    def run(self, script: Callable[[Look], None]) -> None:
        """Certify, with `script` in the place of the children. It gets the function that looks at the records."""

        def run_jobs(
            _: Launcher, queues: Sequence[Queue], progress: Callable[[int, int], None], frees: Callable[[], bool]
        ) -> None:
            self._queues = {queue.run.contender.name: queue for queue in queues}
            self.frees = frees
            script(lambda: (frees(), progress(0, 1))[1])

        self._monkeypatch.setattr(jobs, "run_jobs", run_jobs)
        record_certificates.certify(self._launcher, self.outcomes, CASES, lambda *_: None)

    def may_record(self, name: str) -> bool:
        """Return whether the next record of a contender may begin."""
        return self._queues[name].jobs[-1].may_begin()

    def rooms(self, name: str) -> list[int]:
        """Return what each of a contender's jobs is said to take on the disk."""
        return [job.disk_space() for job in self._queues[name].jobs]

    def record(self, name: str, case: Case, *, precisions: slice = slice(3), size: int = 1) -> None:
        """Have so many of a contender's records of a case come in, and the noise if it is the baseline.

        `size` is the size of one in float64. The others are half as large.
        """
        calls = [call for job in self._queues[name].jobs for call in job.calls]
        of_case = [
            each
            for each in calls
            if isinstance(each.command, RECORDING) and each.command.spec.batch_size == case.batch_size
        ]
        for call in of_case:
            if isinstance(call.command, MeasureNoise):
                call.keep([{} for _ in call.command.perturbations])
        recordings = [(call, call.command) for call in of_case if isinstance(call.command, commands.Record)]
        for call, command in recordings[precisions]:
            record = Record(Path(command.path))
            record.begin()
            own = size if command.spec.precision == "float64" else size // 2
            (record.folder / "part").write_bytes(bytes(max(0, own - record.size)))
            self._owners[record.folder.name] = f"{name} {case.batch_size}"
            call.keep([])

    def there(self) -> list[str]:
        """Return contender and batch size of every record that is on the disk."""
        return sorted(self._owners[folder.name] for folder in self._folders())

    def written(self) -> int:
        """Return the bytes of all records that are on the disk."""
        return sum(Record(folder).size for folder in self._folders())

    def _folders(self) -> Iterable[Path]:
        return self._launcher.scratch.glob("record-*")


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certified:
    return Certified(tmp_path, monkeypatch)


def disk(monkeypatch: pytest.MonkeyPatch, free: Callable[[], int]) -> None:
    monkeypatch.setattr(judge_certificates.tensors, "find_room", lambda _: free())


@pytest.fixture(params=[True, False])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether memory takes what noise is held against, which is as large as a record in float64."""
    monkeypatch.setattr(certificate_cases.tensors, "memory_takes", lambda _: request.param)
    return request.param
