"""The disk that a certificate takes: who may record, and what a job is said to write."""

from pathlib import Path

import pytest

from compare.base.commands import ModelInfo
from compare.execution import certificate_cases
from tests.unit.certified import CASES, FAKE, FIRST, OTHER, SECOND, THIRD, Certified, Look, disk
from tests.unit.certified import certified as certified
from tests.unit.certified import memory as memory
from tests.unit.stage import Stage, exit_code

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
    monkeypatch.setattr(certificate_cases.tensors, "memory_takes", lambda _: False)

    def expected(whole: int) -> list[int]:
        return 2 * [whole // 2, whole, whole // 2]

    def script(_: Look) -> None:
        assert certified.rooms(OTHER) == expected(LEAST)
        assert set(certified.rooms(FAKE)) == {LEAST, LEAST // 2}
        certified.record(OTHER, FIRST, size=2 * LEAST, precisions=slice(1, 2))
        assert certified.rooms(OTHER) == expected(2 * LEAST)
        certified.record(OTHER, FIRST, size=4 * LEAST, precisions=slice(1))
        assert certified.rooms(OTHER) == expected(4 * LEAST)

    certified.outcomes.runs[0].model = ModelInfo("", PARAMETERS, 1)
    certified.run(script)


def test_noise_is_said_to_write_nothing_while_memory_takes_what_it_is_held_against(
    certified: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 2 * LEAST

    def script(_: Look) -> None:
        nonlocal free
        records, noise = 2 * [LEAST // 2, LEAST, LEAST // 2], [0] * (len(certified.rooms(FAKE)) - 6)
        assert sorted(certified.rooms(FAKE)) == sorted(records + noise)
        assert certified.rooms(OTHER) == records
        free -= 1
        assert sorted(certified.rooms(FAKE)) == sorted(records + [LEAST] * len(noise))

    monkeypatch.setattr(certificate_cases.tensors, "memory_takes", lambda size: size <= free)
    certified.outcomes.runs[0].model = ModelInfo("", PARAMETERS, 1)
    certified.run(script)


@pytest.mark.parametrize("failed", [FAKE, OTHER])
def test_nobody_waits_for_one_that_has_failed(
    certified: Certified, monkeypatch: pytest.MonkeyPatch, failed: str
) -> None:
    disk(monkeypatch, lambda: 0)

    def script(look: Look) -> None:
        certified.record(OTHER, FIRST)
        for outcome in certified.outcomes.runs:
            outcome.status = "crash" if outcome.contender.name == failed else "ok"
        certified.record(FAKE, FIRST)
        look()
        if failed == FAKE:
            assert not certified.rooms(THIRD)  # nobody is left to be compared
        else:
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
