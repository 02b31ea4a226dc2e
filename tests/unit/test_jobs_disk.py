"""Jobs that write: which of them begin, beside what, and what becomes of one that the disk has too little for."""

from dataclasses import replace

import pytest

from compare.execution import jobs
from compare.execution.jobs import Job
from compare.execution.launcher import Launcher
from tests.unit.scripted_children import Scripted, execute, make_job, queue
from tests.unit.scripted_children import started as started


def roomy(answers: list[str], room: int, *commands: tuple[str, int]) -> Job:
    return replace(make_job(answers, *commands), disk_space=lambda: room)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with ten bytes, nine of them for jobs. No job takes any."""
    monkeypatch.setattr(jobs.tensors, "find_room", lambda _: 10)


@pytest.mark.parametrize(
    ("room", "expected"),
    [(5, ["small", "first", "other"]), (4, ["small", "other", "first"]), (0, ["small", "other", "first"])],
)
@pytest.mark.usefixtures("disk")
def test_what_the_disk_has_no_space_for_beside_others_waits_until_they_are_done(
    started: Launcher, monkeypatch: pytest.MonkeyPatch, room: int, expected: list[str]
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 8)
    answers: list[str] = []
    execute(
        started,
        queue("fake", roomy(answers, 5, ("first", 9))),
        queue("other", roomy(answers, 0, ("small", 0)), roomy(answers, room, ("other", 2))),
    )
    assert answers == expected


@pytest.mark.usefixtures("disk")
def test_one_child_records_all_for_which_there_is_space_when_its_last_is_done(started: Launcher) -> None:
    answers: list[str] = []
    execute(started, queue("fake", *(roomy(answers, 9, (f"{n}", 1)) for n in range(3))))
    assert (answers, len(Scripted.environments)) == (["0", "1", "2"], 1)


@pytest.mark.usefixtures("disk")
def test_alone_a_job_may_try_whatever_the_disk_has(started: Launcher) -> None:
    answers: list[str] = []
    execute(started, queue("fake", roomy(answers, 11, ("large record", 1))))
    assert answers == ["large record"]


@pytest.mark.usefixtures("disk")
def test_a_job_waits_while_the_disk_is_freed(started: Launcher) -> None:
    answers: list[str] = []
    looks = iter([True] * 9)
    asked_for = queue("fake", roomy(answers, 11, ("large record", 1)))
    jobs.run_jobs(started, [asked_for], lambda *_: None, lambda: next(looks, False))
    assert answers == ["large record"]
    assert next(looks, None) is None


@pytest.mark.usefixtures("disk")
def test_what_the_disk_does_not_hold_beside_others_is_done_again_alone(started: Launcher) -> None:
    answers: list[str] = []
    found = queue("fake", roomy(answers, 1, ("long record", 1)), roomy(answers, 1, ("behind", 1)))
    other = queue("other", *(roomy(answers, 1, (f"{n}", 4)) for n in range(2)))
    execute(started, found, other)
    assert sorted(answers) == ["0", "1", "behind", "long record"]
    assert (found.run.status, other.run.status) == ("ok", "ok")
    last = [line for line in Scripted.said if "long record" in line][-2:]
    assert last == ["fake begins long record", "fake ends long record"]


@pytest.mark.usefixtures("disk")
def test_what_the_disk_does_not_hold_leaves_the_others_as_many_children(
    started: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 3)
    answers: list[str] = []
    other = queue("other", *(roomy(answers, 0, (f"{n}", 3)) for n in range(9)))
    execute(started, queue("fake", roomy(answers, 1, ("long record", 1))), other)
    assert sorted(answers) == sorted([*map(str, range(9)), "long record"])
    at_work = Scripted.said[: Scripted.said.index("other ends 8")]
    running = [
        sum("other begins" in line for line in at_work[:end]) - sum("other ends" in line for line in at_work[:end])
        for end in range(at_work.index("fake is closed"), len(at_work))
    ]
    assert max(running) == 4


def test_it_is_done_again_where_it_was_alone_only_when_it_failed(started: Launcher) -> None:
    answers: list[str] = []
    execute(started, queue("fake", make_job(answers, ("late", 1))))
    assert answers == ["late"]


@pytest.mark.usefixtures("disk")
def test_a_job_for_which_the_disk_alone_is_too_small_fails_its_contender(started: Launcher) -> None:
    answers: list[str] = []
    failing = queue("fake", roomy(answers, 1, ("boundless", 1)), roomy(answers, 1, ("behind", 1)))
    execute(started, failing, queue("other", roomy(answers, 1, ("one", 9))))
    assert answers == ["one"]
    assert (failing.run.status, failing.run.reason) == ("refused", "training: scripted")
