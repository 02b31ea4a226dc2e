"""`samestep explain` and `compare --explain`, with the fake backends."""

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from compare.explain import findings
from compare.report import explanation_text
from compare.results import result_file
from compare.results.explanation import Finding
from compare.results.model import Voided
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


EXPLAIN = ("explain", "fake", "other", "--device", "cpu", "--epochs", "1", "--out", "out")


def test_it_prints_where_the_step_goes_and_writes_a_time_line(program: Program) -> None:
    code, out, _ = program.run(*EXPLAIN)
    assert code == 0
    lines = out.splitlines()
    assert next(line.split() for line in lines if line.startswith("ms per step")) == [
        "ms",
        "per",
        "step",
        "fake",
        "other",
        "difference",
    ]
    found = result_file.read(program.folder / "out" / "result.json").explanation
    assert found is not None
    step = found.step_milliseconds["fake"]
    times = {each.name: each.contenders["fake"].milliseconds for each in found.classes}
    assert sum(times.values()) == pytest.approx(step)
    assert times["matrix-product"] == pytest.approx(3 * times["layout-and-copy"])
    assert times["idle"] == pytest.approx(0.2 * step, rel=0.05)
    assert found.attributed_share == {"fake": 1.0, "other": 1.0}
    assert not found.host_milliseconds  # a CPU's own work is no time of the host
    assert found.peaks.flops_per_second == {"float32": 1e6}
    assert found.layers[0].contenders.keys() == {"fake", "other"}
    trace = json.loads((program.folder / "out" / "timeline.json").read_text())
    assert {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"} == {
        "fake",
        "other",
    }
    result = result_file.read(program.folder / "out" / "result.json")
    assert "void" not in "".join(explanation_text.lines(result))
    void = tuple(Voided(round=number + 1, reason="busy") for number in range(result.spec.rounds))
    undecided = tuple(replace(each, verdict="INCONCLUSIVE") for each in result.comparisons)
    first = next(explanation_text.lines(replace(result, voided=void, comparisons=undecided)))
    assert first == "these times are of void rounds, so they support no claim"
    last = list(
        explanation_text.lines(replace(result, explanation=replace(found, scales={"fake": 0.7, "other": 34.1})))
    )
    assert "multiplied by 0.7" in last[-2]
    assert (
        "does not explain the step of other: its timed steps took 34.1 times as long as its profiled ones" in last[-1]
    )
    program.run("report", "out", "--markdown", "page.md", "--html", "page.html")
    assert (program.folder / "page.html").read_text().count("<svg") >= 2
    text = (program.folder / "page.md").read_text()
    assert "Where a step goes" in text
    assert "Layers by difference" in text


def test_it_says_that_there_is_nothing_to_try(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.explain.findings.find", lambda _: ())
    code, _, error = program.run(*EXPLAIN, "--try", "--skip-agreement")
    assert code == 0
    assert "--try: no finding names a knob, so nothing was tried" in error


def test_tried_suggestions_have_their_measured_gain_or_the_reason_without(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behaviours = {
        "fake": {"knob_factors": {"channels-last": 0.5}},
        "other": {"fault": "wrong-gradient", "only_with": "fused-optimizer"},
    }
    plans.register(monkeypatch, tmp_path / "logs", behaviours)
    suggestions = [
        Finding(contender="fake:compiled+channels-last=off", text="slow", knob=knob, predicted_milliseconds=-3.0)
        for knob in ("compile+channels-last", None)
    ] + [
        Finding(contender="other", text="slow", knob=knob, predicted_milliseconds=-1.0)
        for knob in ("fused-optimizer", "concurrent-kernels")
    ]
    monkeypatch.setattr(findings, "find", lambda sides: suggestions)
    code, out, _ = program.run("explain", "fake:compiled+channels-last=off", *EXPLAIN[2:], "--try")
    explanation = result_file.read(program.folder / "out" / "result.json").explanation
    assert explanation is not None
    faster, untried, wrong, refused = explanation.findings
    half = 0.5 * explanation.step_milliseconds["fake:compiled+channels-last=off"]
    assert faster.measured_milliseconds == pytest.approx(-half, rel=0.1)
    assert untried.measured_milliseconds is untried.measured_reason is None
    assert faster.predicted_milliseconds == -3.0
    assert wrong.measured_milliseconds is refused.measured_milliseconds is None
    assert "no agreement with fake" in (wrong.measured_reason or "")
    assert "needs --device cuda" in (refused.measured_reason or "")
    tried = result_file.read(program.folder / "out" / "try" / "result.json").spec.contenders
    assert tried[2:] == ("fake:compiled+compile+channels-last", "other:compiled+fused-optimizer")
    assert code == 0
    assert "measured -" in out


def test_a_comparison_explains_if_it_is_asked_to(program: Program) -> None:
    arguments = ("fake", "other", "--device", "cpu", "--epochs", "1", "--rounds", "3")
    code, out, _ = program.run("compare", *arguments, "--explain", "--out", "with")
    assert code == 0
    assert "ms per step" in out
    code, out, _ = program.run("compare", *arguments, "--out", "without")
    assert code == 0
    assert "ms per step" not in out
    assert "explanation" not in json.loads((program.folder / "without" / "result.json").read_text())
    assert not (program.folder / "without" / "timeline.json").exists()


@pytest.mark.parametrize(("fault", "reason"), [("raise", "profiler failed"), ("kill", "profiled step")])
def test_a_profiler_that_fails_leaves_a_reason_and_the_comparison(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, reason: str
) -> None:
    behaviours = {"other": {"fault": fault, "at": "profile"}}
    for name, value in plans.environment(tmp_path / "logs", behaviours).items():
        monkeypatch.setenv(name, value)
    code, out, _ = program.run(*EXPLAIN)
    found = result_file.read(program.folder / "out" / "result.json")
    assert found.explanation is not None
    assert [contender.status for contender in found.contenders] == ["ok", "ok"]
    assert code == 0
    assert list(found.explanation.step_milliseconds) == ["fake"]
    assert reason in found.explanation.reasons["other"]
    assert "other is not explained" in out


def test_a_step_over_several_devices_is_refused(program: Program) -> None:
    code, out, error = program.run("compare", "fake:ddp", "other:ddp", "--device", "cpu", "--devices", "2", "--explain")
    assert (code, out) == (2, "")
    assert "--explain with several devices is not allowed; allowed: one device of one machine" in error
