"""A busy machine: the run waits for quiet for a bounded time, names the busy program, and does not go on for ever."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare.execution import quiet, round_validity, rounds
from compare.execution.launcher import Launcher
from compare.execution.quiet import Patience
from compare.machine import cpu
from compare.report import telemetry_text
from compare.reproduce import recompute
from compare.settings.plan import Plan
from tests.unit.result_factory import typed
from tests.unit.stage import Stage

PLAN = cast(Plan, SimpleNamespace(device="cpu", void_limit=0.25))
LAUNCHER = cast(Launcher, SimpleNamespace(list_processes=lambda: {1}, plan=PLAN))


def wait(monkeypatch: pytest.MonkeyPatch, cores: Sequence[float]) -> tuple[int, list[str]]:
    """Return the seconds that a run waits while other programs keep so many cores busy, and what it says."""
    left, slept, said = iter(cores), list[float](), list[str]()
    monkeypatch.setattr(cpu, "count_foreign_cores", lambda before, after: next(left))
    monkeypatch.setattr(cpu, "read_programs", lambda: {1: ("own", 9.0), 7: ("chrome", 5.0 * len(slept))})
    monkeypatch.setattr(quiet, "time", SimpleNamespace(sleep=slept.append))
    Patience(LAUNCHER, said.append).wait()
    return len(slept), said


def test_a_run_waits_until_other_programs_rest_and_names_the_busiest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(monkeypatch, [1.5, 0.3, 0.2]) == (
        3,
        [
            "waiting for quiet: chrome (process 7) works, 1.5 cores are busy",
            "waiting for quiet: chrome (process 7) works, 0.3 cores are busy",
        ],
    )


def test_a_run_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(monkeypatch, [1.0] * 99)[0] == quiet.LONGEST_SECONDS


@pytest.mark.parametrize(
    ("device", "cores", "expected"),
    [
        ("cpu", 0.2, None),
        (
            "cpu",
            1.5,
            "chrome (process 7) works, 1.5 cores are busy: rounds beside it may be void. "
            "Stop it, or raise --void-limit",
        ),
        ("cuda", 1.5, None),
    ],
)
def test_a_run_says_before_it_starts_who_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch, device: str, cores: float, expected: str | None
) -> None:
    slept = list[float]()
    monkeypatch.setattr(cpu, "count_foreign_cores", lambda before, after: cores)
    monkeypatch.setattr(cpu, "read_programs", lambda: {7: ("chrome", 5.0 * len(slept))})
    monkeypatch.setattr(quiet, "time", SimpleNamespace(sleep=slept.append))
    plan = cast(Plan, SimpleNamespace(device=device, void_limit=0.25))
    assert quiet.describe_load(plan) == expected


@pytest.mark.parametrize(
    ("physical", "threads", "devices", "asked", "expected"),
    [
        (2, "", 1, None, 0.25),
        (2, "2", 1, None, 0.25),
        (16, "4", 1, None, 3.25),
        (16, "4", 2, None, 0.25),
        (2, "", 1, 1.5, 1.5),
    ],
)
def test_the_void_limit_grows_with_the_cores_that_contenders_leave_free(
    monkeypatch: pytest.MonkeyPatch, physical: int, threads: str, devices: int, asked: float | None, expected: float
) -> None:
    monkeypatch.setattr(cpu, "count_physical_cores", lambda: physical)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    plan = cast(Plan, SimpleNamespace(device="cpu", devices=devices, void_limit=asked))
    assert round_validity.find_limit(plan) == expected


def test_the_void_limit_of_a_user_decides_and_stands_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = busy_run(tmp_path, monkeypatch, [0.6, 0.8, 0.6, 0.6], rounds=3, agreement=False, void_limit=0.7)
    assert [each["round"] for each in result["voided"]] == [2]
    assert result["telemetry"]["void_limit"] == result["spec"]["void_limit"] == 0.7
    assert recompute.find_mismatches(typed(result)) == []
    assert any("at most 0.7 cores" in line for line in telemetry_text.list_lines(typed(result)))


def test_the_busiest_program_is_none_of_the_run_s_own_and_did_work() -> None:
    before = {1: ("own", 0.0), 2: ("a", 5.0), 3: ("b", 0.0)}
    after = {1: ("own", 9.0), 2: ("a", 5.5), 3: ("b", 0.4), 4: ("new", 0.2)}
    assert cpu.name_busiest(before, after, {1}) == "a (process 2)"
    assert cpu.name_busiest(before, before, {1}) is None
    assert cpu.name_busiest({}, {}, {1}) is None


def test_this_machine_lists_this_process() -> None:
    name, seconds = cpu.read_programs()[os.getpid()]
    assert name
    assert seconds > 0


def busy_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: Sequence[float], **changes: Any) -> dict[str, Any]:
    """Return the result of a run. Other programs keep so many cores busy in its rounds."""
    stage, left = Stage(tmp_path, monkeypatch), iter(cores)
    monkeypatch.setattr(Patience, "wait", lambda self: None)
    monkeypatch.setattr(cpu, "count_foreign_cores", lambda before, after: next(left))
    monkeypatch.setattr(cpu, "name_busiest", lambda *_: "chrome (process 7)")
    return stage.run("fake", "other", **{"void_limit": 0.25, **changes})


def test_a_run_on_a_busy_machine_ends_soon_and_says_who_was_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = busy_run(tmp_path, monkeypatch, [1.0] * 99, rounds=None)
    assert result["spec"]["rounds"] == rounds.MOST_VOID_IN_A_ROW
    assert result["telemetry"]["busiest"] == ["chrome (process 7)"] * rounds.MOST_VOID_IN_A_ROW
    assert "too many rounds were void" in result["comparisons"][0]["stopped"]["reason"]
    text = telemetry_text.describe_disturbance(typed(result))
    assert text is not None
    assert "busiest: chrome (process 7) in 6 rounds" in text


def test_a_program_that_ends_costs_only_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = busy_run(tmp_path, monkeypatch, [1.0, 1.0, *[0.0] * 9], rounds=3, agreement=False)
    assert len(result["voided"]) == 2
    assert result["spec"]["rounds"] == 5
    assert result["telemetry"]["busiest"] == ["chrome (process 7)"] * 2 + [None] * 3
