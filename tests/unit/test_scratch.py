"""The disk that a certificate takes: which contenders' records are there at any time."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from compare.agreement import certificate
from compare.agreement.certificate import Certificate
from compare.certificates import certification, evidence, judging
from compare.certificates.evidence import Case
from compare.certificates.records import Record
from compare.data import store
from compare.outcomes import Outcome, Outcomes
from compare.processes import jobs
from compare.processes.jobs import Queue
from compare.processes.launcher import Launcher
from tests.fakebackend import plans
from tests.unit.stage import Stage, exit_code

FIRST, SECOND = CASES = (Case(8, None), Case(4, None))
FAKE, OTHER, THIRD = "fake", "other", "third"
Look = Callable[[], None]


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
        self.outcomes = Outcomes([Outcome(contender) for contender in plan.contenders])
        self._monkeypatch = monkeypatch
        self._owners: dict[str, str] = {}
        self._queues: dict[str, Queue] = {}
        self.frees: Callable[[], bool] = lambda: False
        monkeypatch.setattr(certification, "ThreadPoolExecutor", AtOnce)
        monkeypatch.setattr(certificate, "make", lambda *_, **__: Certificate((), None))
        monkeypatch.setattr(Record, "load", lambda _: {})
        monkeypatch.setattr(certificate, "combine", lambda _: Certificate((), None))
        store.save(plan.dataset, self._launcher.dataset)

    def run(self, script: Callable[[Look], None]) -> None:
        """Certify, with `script` in the place of the children; it is given what looks at the records."""

        def carry_out(
            _: Launcher, queues: Sequence[Queue], progress: Callable[[int, int], None], frees: Callable[[], bool]
        ) -> None:
            self._queues = {queue.outcome.contender.name: queue for queue in queues}
            self.frees = frees
            script(lambda: progress(0, 1))

        self._monkeypatch.setattr(jobs, "carry_out", carry_out)
        certification.certify(self._launcher, self.outcomes, CASES, lambda *_: None)

    def may_record(self, name: str) -> bool:
        """Return whether the next record of a contender may begin."""
        return self._queues[name].jobs[-1].may_begin()

    def rooms(self, name: str) -> list[int]:
        """Return what each of a contender's jobs is said to take on the disk."""
        return [job.room() for job in self._queues[name].jobs]

    def record(self, name: str, case: Case, *, precisions: slice = slice(3), size: int = 1) -> None:
        """Have so many of a contender's records of a case come in, and the noise if it is the baseline.

        `size` is that of one in float64; the others are half as large.
        """
        commands = [command for job in self._queues[name].jobs for command in job.commands]
        of_case = [each for each in commands if each.arguments.get("spec", {}).get("batch_size") == case.batch_size]
        for command in of_case:
            if command.name == "noise":
                command.keep([{} for _ in command.arguments["perturbations"]])
        for command in [each for each in of_case if each.name == "record"][precisions]:
            record = Record(Path(command.arguments["path"]))
            record.begin()
            own = size if command.arguments["spec"]["precision"] == "float64" else size // 2
            (record.folder / "part").write_bytes(bytes(max(0, own - record.size)))
            self._owners[record.folder.name] = f"{name} {case.batch_size}"
            command.keep([])

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


def test_a_contenders_records_go_when_they_are_judged_the_baselines_with_the_last(certified: Certified) -> None:
    def script(look: Look) -> None:
        certified.record(FAKE, FIRST)
        certified.record(OTHER, FIRST)
        certified.record(THIRD, FIRST, precisions=slice(2))
        look()
        assert certified.there() == ["fake 8"] * 3 + ["third 8"] * 2
        certified.record(OTHER, SECOND)
        look()
        assert certified.there() == ["fake 8"] * 3 + ["other 4"] * 3 + ["third 8"] * 2

    certified.run(script)
    assert certified.outcomes.certificates == {}  # of no contender all has come


def test_in_the_end_nothing_is_left(certified: Certified) -> None:
    def script(look: Look) -> None:
        for name in (OTHER, THIRD, FAKE):
            for case in CASES:
                certified.record(name, case)
        look()
        assert certified.there() == []

    certified.run(script)
    assert [*certified.outcomes.certificates] == [OTHER, THIRD]


@pytest.mark.parametrize("failed", [THIRD, FAKE])
def test_records_that_a_failed_side_will_never_let_be_judged_are_deleted(certified: Certified, failed: str) -> None:
    def script(look: Look) -> None:
        for name in (FAKE, OTHER, THIRD):
            certified.record(name, FIRST, precisions=slice(1 if name == failed else 3))
        for outcome in certified.outcomes.contenders:
            outcome.status = "crash" if outcome.contender.name == failed else "ok"
        look()
        assert certified.there() == []

    certified.run(script)


def test_of_what_is_recorded_twice_the_timed_precision_alone_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified = Certified(tmp_path, monkeypatch, deterministic=True)

    def script(look: Look) -> None:
        for case in CASES:
            for name in (FAKE, OTHER, THIRD):
                certified.record(name, case)
        look()
        assert certified.there() == ["fake 8", "other 8", "third 8"]

    certified.run(script)


def disk(monkeypatch: pytest.MonkeyPatch, free: Callable[[], int]) -> None:
    monkeypatch.setattr(judging.tensors, "room", lambda _: free())


@pytest.fixture(params=[True, False])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether memory takes what noise is held against, which is as large as a record in float64."""
    monkeypatch.setattr(evidence.tensors, "memory_takes", lambda _: request.param)
    return request.param


SIZE = 1000
"""The bytes of a record in float64."""


@pytest.mark.parametrize("first", [0, 1])  # in float64, or in float32, as large as half of it
@pytest.mark.parametrize(("precision", "of_a_side"), [("bfloat16", 4 * SIZE), ("float32", 3 * SIZE)])
@pytest.mark.parametrize(("sides", "short"), [(3.0, 0), (3.0, 1), (2.5, 0), (2.5, 1)])
def test_a_contender_waits_for_room_or_until_those_before_it_are_judged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memory: bool,
    precision: str,
    of_a_side: int,
    sides: float,
    short: int,
    first: int,
) -> None:
    certified = Certified(tmp_path, monkeypatch, precision=precision)
    total = sides * of_a_side + (0 if memory else SIZE) - short
    disk(monkeypatch, lambda: int(total) - certified.written())

    def script(look: Look) -> None:
        assert [certified.may_record(name) for name in (FAKE, OTHER, THIRD)] == [True, True, False]
        certified.record(OTHER, FIRST, size=SIZE, precisions=slice(first, first + 1))
        assert certified.may_record(THIRD) is (sides == 3 and not short)
        for name, case in ((OTHER, FIRST), (OTHER, SECOND), (FAKE, FIRST)):
            certified.record(name, case, size=SIZE)
        look()  # two of four cases of those before it are still there
        assert certified.may_record(THIRD) is (sides == 3 or not short)
        certified.record(FAKE, SECOND, size=SIZE)
        look()
        assert certified.may_record(THIRD)

    certified.run(script)


def test_no_room_is_kept_for_noise_that_is_known(
    certified: Certified, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    def script(_: Look) -> None:
        for case in CASES:
            certified.record(FAKE, case, size=SIZE)
        for free, expected in ((8 * SIZE - 1, False), (8 * SIZE, True)):  # for two contenders' records
            disk(monkeypatch, lambda free=free: free)
            assert certified.may_record(THIRD) is expected

    certified.run(script)


PARAMETERS = 1000
LEAST = 8 * 8 * PARAMETERS
"""The bytes in float64 of every parameter, before and after, and of a gradient and an update of each of three steps."""


def test_a_job_is_said_to_write_what_the_largest_record_tells_and_the_parameters_until_then(
    certified: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence.tensors, "memory_takes", lambda _: False)

    def expected(whole: int) -> list[int]:
        return [*2 * [whole, whole // 2, whole // 2]]

    def script(_: Look) -> None:
        assert certified.rooms(OTHER) == expected(LEAST)
        assert set(certified.rooms(FAKE)) == {LEAST, LEAST // 2}
        certified.record(OTHER, FIRST, size=2 * LEAST, precisions=slice(1, 2))
        assert certified.rooms(OTHER) == expected(2 * LEAST)
        certified.record(OTHER, FIRST, size=4 * LEAST, precisions=slice(1))
        assert certified.rooms(OTHER) == expected(4 * LEAST)

    certified.outcomes.contenders[0].opened = {"parameter_count": PARAMETERS}
    certified.run(script)


def test_noise_is_said_to_write_nothing_while_memory_takes_what_it_is_held_against(
    certified: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 2 * LEAST

    def script(_: Look) -> None:
        nonlocal free
        records, noise = 2 * [LEAST, LEAST // 2, LEAST // 2], [0] * (len(certified.rooms(FAKE)) - 6)
        assert sorted(certified.rooms(FAKE)) == sorted(records + noise)
        assert certified.rooms(OTHER) == records
        free -= 1
        assert sorted(certified.rooms(FAKE)) == sorted(records + [LEAST] * len(noise))

    monkeypatch.setattr(evidence.tensors, "memory_takes", lambda size: size <= free)
    certified.outcomes.contenders[0].opened = {"parameter_count": PARAMETERS}
    certified.run(script)


def test_space_is_freed_while_something_is_judged(
    tmp_path: Path, certified: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def judged(*_: Any, **__: Any) -> Certificate:
        found.append(certified.frees())
        return Certificate((), None)

    monkeypatch.setattr(certificate, "make", judged)

    def script(look: Look) -> None:
        certified.record(FAKE, FIRST)
        certified.record(OTHER, FIRST)
        found.append(certified.frees())
        look()
        found.append(certified.frees())

    certified.run(script)
    assert found == [False, True, False]


@pytest.mark.parametrize("failed", [FAKE, OTHER])
def test_nobody_waits_for_one_that_has_failed(
    certified: Certified, monkeypatch: pytest.MonkeyPatch, failed: str
) -> None:
    disk(monkeypatch, lambda: 0)

    def script(look: Look) -> None:
        certified.record(OTHER, FIRST)
        for outcome in certified.outcomes.contenders:
            outcome.status = "crash" if outcome.contender.name == failed else "ok"
        certified.record(FAKE, FIRST)
        look()
        assert certified.may_record(THIRD)

    certified.run(script)


def test_on_a_full_disk_contenders_are_certified_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch)
    disk(monkeypatch, lambda: 0)
    result = stage.agree(FAKE, OTHER, THIRD)
    assert [pair["status"] for pair in result["agreement"]["pairs"]] == ["pass", "pass"]
    order = [call[0] for call in stage.calls("inspect") if call[0] != FAKE]
    assert order == sorted(order)  # other, then third
    assert exit_code(result) == 0


def test_a_contender_that_waits_starts_no_process_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, monkeypatch)
    disk(monkeypatch, lambda: 0)
    stage.run(FAKE, OTHER, THIRD)
    processes = {name: {call[1] for call in stage.calls("start") if call[0] == name} for name in (OTHER, THIRD)}
    assert len(processes[THIRD]) == len(processes[OTHER])
