"""`samestep diff --against REV` with scripted times: how long it times, what it says, and its exit code."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.execution import ready_children
from compare.reproduce import recompute
from compare.results import result_file
from compare.results.model import Result, Stopped
from compare.settings import contenders, plan, revisions
from compare.settings.options import Settings
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program

make = plan.make


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    """The program, with a scripted backend in the place of each revision."""

    def make_scripted(settings: Settings) -> plan.Plan:
        assert settings.contenders == ("fake@HEAD", "fake")
        return make(replace(settings, contenders=("fake@HEAD", "other"), epochs=1))

    monkeypatch.setattr(contenders, "list_sides", lambda workload: ("fake",))
    monkeypatch.setattr(contenders, "check_sides", lambda *_: None)
    monkeypatch.setattr(revisions, "check_out", lambda parsed, *_: parsed)
    monkeypatch.setattr(plan, "make", make_scripted)
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 0)  # the order of processes decides times
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


def diff(
    program: Program, monkeypatch: pytest.MonkeyPatch, slower: float, noise: float, *options: str
) -> tuple[int, str, Result]:
    """Return the exit code, the report and the result for a model that is so much slower than the revision."""
    script: dict[str, Any] = {"launch_noise": noise, "seed": 14, "step_noise": 0.001}
    other = {**script, "step_seconds": 0.004 * slower}
    for name, value in plans.environment(program.folder, {"fake": script, "other": other}).items():
        monkeypatch.setenv(name, value)
    for claimed in program.folder.glob("*.pid"):
        claimed.unlink()
    code, out, _ = program.run("diff", "--against", "HEAD", "--device", "cpu", "--out", "out", *options)
    result = result_file.read(program.folder / "out" / "result.json")
    assert recompute.find_mismatches(result) == []
    return code, " ".join(out.split()), result


CLEAR, LAST = "the ratio was clear of the limit of 3 %", "the maximum of 20 rounds was reached"


@pytest.mark.parametrize(
    ("slower", "noise", "code", "rounds", "reason"),
    [
        pytest.param(1.0, 0.0, 0, 3, CLEAR, id="equal"),
        pytest.param(1.5, 0.0, 1, 3, CLEAR, id="clearly slower"),
        pytest.param(1.015, 0.02, 0, 20, LAST, id="slower at first"),
        pytest.param(1.028, 0.02, 1, 20, LAST, id="slower and noisy"),
    ],
)
def test_a_failing_gate_is_confirmed_by_more_rounds(
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    slower: float,
    noise: float,
    code: int,
    rounds: int,
    reason: str,
) -> None:
    returned, out, result = diff(program, monkeypatch, slower, noise)
    (comparison,) = result.comparisons
    assert comparison.stopped == Stopped(rounds=rounds, reason=reason)
    assert (returned, comparison.rounds, result.spec.rounds_requested) == (code, rounds, 20)
    assert f"timing stopped after {rounds} rounds, because {reason}" in out
    assert ("REGRESSION at 3 %" in out) is (code == 1)


def test_a_fixed_number_of_rounds_stays_fixed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, result = diff(program, monkeypatch, 1.015, 0.02, "--rounds", "10", "--void-limit", "1000")
    assert (code, result.spec.rounds, result.spec.looks, result.comparisons[0].stopped) == (1, 10, None, None)
    assert result.spec.void_limit == 1000
    assert "REGRESSION at 3 %" in out
    code, _, result = diff(program, monkeypatch, 1.015, 0.02, "--rounds", "10", "--fail-above", "5%")
    assert (code, result.spec.fail_above) == (0, 0.05)
