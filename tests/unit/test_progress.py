"""What a job's log shows while a command works: standard error is no terminal there."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from compare.execution import execute, progress, run_times
from compare.execution.progress import PhaseClock
from compare.store.entries import Store
from tests.fakebackend import plans


def test_a_log_has_a_line_for_each_phase_and_one_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    seconds = 1000.0
    monkeypatch.setattr(progress, "monotonic", lambda: seconds)
    with progress.show("2 devices: ") as advance:
        advance("compile", 0, 1)  # within the first seconds of a run
        for now, phase, done in (
            (1012.0, "certify", 0),
            (1059.9, "certify", 3),
            (1072.0, "certify", 4),
            (1075.0, "usage", 0),  # so shortly after a line
            (1119.9, "timed rounds", 1),
            (1754.0, "timed rounds", 2),
        ):
            seconds = now
            advance(phase, done, 7)
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines() == [
        "  0:12  2 devices: certify 0/7",
        "  1:12  2 devices: certify 4/7",
        "  1:59  2 devices: timed rounds 1/7",
        " 12:34  2 devices: timed rounds 2/7, at most 26 minutes left",
    ]


def test_the_time_left_is_that_of_an_earlier_run_less_what_has_passed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    seconds = 0.0
    monkeypatch.setattr(progress, "monotonic", lambda: seconds)
    clock = PhaseClock({"compile": 20.0, "certify": 200.0, "timed rounds": 50.0})
    assert clock.estimate_left() == 270
    with progress.show("", clock) as advance:
        advance("compile", 0, 1)
        for now, phase in ((15.0, "certify"), (115.0, "certify: waiting"), (300.0, "timed rounds (a 1 to 2)")):
            seconds = now
            advance(phase, 0, 2)
        seconds = 310.0
        advance("timed rounds", 1, 2)
        clock.enter("")
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "about 4 minutes left",
        "about 2 minutes left",
        "about 50 s left",  # the phases before took longer or shorter, and are over
    ]
    assert clock.seconds == {"compile": 15.0, "certify": 285.0, "timed rounds": 10.0}
    assert PhaseClock().estimate_left() is None


def test_phases_that_a_run_skips_are_not_left():
    clock = PhaseClock({"compile": 20.0, "certify": 200.0, "timed rounds": 50.0})
    clock.enter("timed rounds")
    assert clock.estimate_left() == 50


def test_times_of_phases_are_kept_for_equal_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), store=tmp_path / "store")
    assert run_times.find(plan) == {}
    run_times.keep(plan, {"compile": 2.0})
    run_times.keep(plan, {"compile": 3.5})
    assert run_times.find(plan) == {"compile": 3.5}
    assert run_times.find(replace(plan, batch_size=8)) == {}
    assert run_times.find(replace(plan, contenders=plan.contenders[:1])) == {}
    (entry,) = Store(tmp_path / "store").entries()
    (entry.folder / "phases.json").write_text("[]")
    assert run_times.find(plan) == {}


def test_a_run_says_before_it_starts_how_long_the_last_one_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), agreement=False, rounds=4)
    phases_seen = list[str]()
    enter = PhaseClock.enter

    def noted(clock: PhaseClock, phase: str) -> None:
        phases_seen.append(phase)
        enter(clock, phase)

    monkeypatch.setattr(PhaseClock, "enter", noted)
    execute.execute(plan, ["samestep"])
    assert capsys.readouterr().err == ""
    assert any(phase.startswith("timed rounds (other ") and " to " in phase for phase in phases_seen)
    assert {"train: fake, other", "timed rounds", "timed rounds: fake", "timed rounds: other"} <= {*phases_seen}
    kept = run_times.find(plan)
    assert "timed rounds" in kept
    run_times.keep(plan, kept | {"timed rounds": 75.0})
    execute.execute(plan, ["samestep"])
    assert re.match(r"samestep: the last equal run here took \d\d s", capsys.readouterr().err)


def test_a_terminal_has_no_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    with progress.show() as advance:
        advance("certify", 1, 7)
    assert "\r" in (shown := capsys.readouterr().err)
    assert "0:00  certify" not in shown
