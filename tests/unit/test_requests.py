"""Runs of the task `infer` through the real worker and rounds, with scripted backends."""

import math
from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.execution import execute, round_validity, timed_requests
from compare.plugin import result as api_result
from compare.report import compact, measurements, sections, sentences
from compare.report.formats import csv
from compare.report.plots.canvas import Picture
from compare.reproduce import bundle, claims, recompute, regression
from compare.results import model, result_file
from compare.results.model import Result
from compare.settings import options, plan, tasks
from compare.settings.options import Settings
from tests.fakebackend import plans

pytestmark = pytest.mark.xdist_group("requests")  # a finished run is made once

SIZES = (1, 32)
FAST = {"step_seconds": 1e-3}  # enough requests for p99


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *others: dict[str, Any], **changes: Any) -> Result:
    """Run `fake` against one or two other backends, each with its script."""
    names = ("fake", "other", "third")[: 1 + len(others)]
    scripts = {name: {"seed": seed, **FAST} for seed, name in enumerate(names, start=1)}
    for name, script in zip(names[1:], others, strict=True):
        scripts[name] |= script
    plans.register(monkeypatch, folder, scripts)
    monkeypatch.setattr(timed_requests, "LEAST_REQUESTS", 150)
    settings: dict[str, Any] = {"task": "infer", "rounds": 3, **changes}
    made = plans.make(folder / "out", names, epochs=None, **settings)
    return execute.execute(made, ("samestep",))[0]


def find_latency(contender: model.Contender, size: int) -> model.Latency:
    assert contender.latency
    return contender.latency[str(size)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Return a result in which one side takes twice as long, and its folder."""
    folder = tmp_path_factory.mktemp("slower")
    with pytest.MonkeyPatch.context() as patch:
        return run(patch, folder, {"step_seconds": 2e-3}), folder / "out"


def test_each_batch_size_has_its_latencies_and_its_verdict(finished: tuple[Result, Path]) -> None:
    result, _ = finished
    assert (result.spec.task, result.spec.batch_sizes) == ("infer", SIZES)
    assert result.agreement.status == "pass"
    assert [(each.batch_size, each.verdict) for each in result.comparisons] == [(1, "SLOWER"), (32, "SLOWER")]
    fast, slow = result.contenders
    assert fast.step_seconds is None
    assert fast.training is None
    for size in SIZES:
        latency, slower = find_latency(fast, size), find_latency(slow, size)
        assert latency.p50 == pytest.approx(1e-3 * size**0.5, rel=0.05)
        assert slower.p50 == pytest.approx(2e-3 * size**0.5, rel=0.05)
        assert (latency.low or 0) <= (latency.p50 or 0) <= (latency.high or 0)
        assert (latency.p50 or 0) <= (latency.p90 or 0) <= (latency.p99 or 0)
        assert latency.images_per_second == pytest.approx(size / (latency.p50 or 1), rel=0.05)
        assert latency.device_seconds is None
        assert "CPU" in latency.absent["device_seconds"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_validity, "FOREIGN_CORES", math.inf)  # scripted time passes in no window
        patch.setattr(recompute, "WINDOW_ROUNDING", math.inf)
        assert not recompute.find_mismatches(result)


def test_the_report_has_rows_and_a_claim_for_each_batch_size(finished: tuple[Result, Path]) -> None:
    result, _ = finished
    labels = [label for label, _ in measurements.make_rows(result.contenders, 0.95)]
    assert [label for label in labels if label.startswith("batch ")] == ["batch 1: p50 (ms)", "batch 32: p50 (ms)"]
    claims = [sentences.describe_comparison(each) for each in result.comparisons]
    assert claims[0].startswith("at batch 1, other takes 2.0")
    assert claims[1].startswith("at batch 32, other takes 2.0")
    assert "answered requests on cpu" in sentences.make_heading(result)


def test_the_task_is_a_field_like_any_other(finished: tuple[Result, Path]) -> None:
    result, path = finished
    assert result_file.read(path / "result.json") == result
    rows = csv.render([result]).splitlines()
    assert len(rows) == 1 + sum(
        len(each) for side in result.contenders for s in side.list_series() for each in s.samples
    )
    assert ",1,cpu,other," in rows[-1] or ",32,cpu,other," in rows[-1]
    assert len(bundle.write_samples(result).splitlines()) == len(rows)
    changes = {change.figure: change for change in regression.find_changes(result, result, 0.03)}
    assert {"p50 at batch 1", "p50 at batch 32"} <= changes.keys()
    assert changes["p50 at batch 32"].outcome == "UNCHANGED"
    claims_ = {claim.subject: claim.outcome for claim in claims.judge(result, result)}
    assert claims_["other against fake at batch 1: speed"] == "REPRODUCED"
    part = sections.make_part(result)
    ratio = next(section for section in part.sections if section.name == "ratio")
    assert [row[1] for row in ratio.tables[0].rows] == ["1", "32"]
    drawn = next(section for section in part.sections if section.name == "requests").picture
    assert isinstance(drawn, Picture)
    assert drawn.draw().axes[0].get_xlabel() == "p50 of a request (ms)"
    seen = api_result.Result(result, path / "result.json")
    assert seen.ratio("other", batch_size=32).estimate == pytest.approx(2, rel=0.05)
    assert seen.contender("fake").latency[1].p50 == pytest.approx(1e-3, rel=0.05)
    with pytest.raises(LookupError, match="there are: 1, 32"):
        seen.verdict("other")
    assert [row.batch_size for row in compact.list_rows(result)] == [1, 1, 32, 32]
    stated: dict[str, Any] = {**options.from_spec(model.to_json(result)["spec"]), "contenders": ("torch", "jax")}
    repeated = Settings(**stated)
    assert tasks.choose_batch_sizes(repeated, plan.find_workload(result.spec.workload)) == SIZES


def test_another_function_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faults = ({"fault": "batch-statistics"}, {"fault": "cast"})
    result = run(monkeypatch, tmp_path, *faults, rounds=2, batch_sizes="4")
    assert [pair.status for pair in result.agreement.pairs] == ["fail", "fail"]
    assert [each.verdict for each in result.comparisons] == ["INVALID", "INVALID"]


def test_work_that_was_not_done_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faults = ({"fault": "skip"}, {"fault": "aged"})
    result = run(monkeypatch, tmp_path, *faults, rounds=2, batch_sizes="4", agreement=False)
    _, skipping, ageing = result.contenders
    assert "requests were dispatched" in (skipping.unproven or "")
    assert "changed while it was timed" in (ageing.unproven or "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accumulate": 2}, "--accumulate"),
        ({"epochs": 3}, "--epochs"),
        ({"devices": 2}, "--devices"),
        ({"batch_size": 4, "batch_sizes": "1,2"}, "--batch-sizes"),
        ({"batch_sizes": "2,1"}, "--batch-sizes"),
        ({"contenders": ("torch:tuned+fused-optimizer", "jax")}, "fused-optimizer is for --task train"),
        ({"contenders": ("torch:stock+constant-weights", "jax")}, "constant-weights needs compile in torch"),
        ({"contenders": ("jax:stock+compile=off+constant-weights", "torch")}, "constant-weights needs compile in jax"),
        ({"contenders": ("jax:ahead-of-time+constant-weights", "torch")}, "exported excludes constant-weights in jax"),
        (
            {"contenders": ("torch:ahead-of-time+constant-weights", "jax")},
            "exported excludes constant-weights in torch",
        ),
    ],
)
def test_settings_of_training_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        plan.make(Settings(task="infer", device="cpu", **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_sizes": "1,2"}, "--batch-sizes needs --task infer"),
        ({"contenders": ("torch:ahead-of-time", "jax")}, "ahead-of-time needs --task infer"),
        ({"contenders": ("torch:stock+fold-batch-norm", "jax")}, "fold-batch-norm is for --task infer"),
        ({"contenders": ("jax:stock+constant-weights", "torch")}, "constant-weights is for --task infer"),
        ({"contenders": ("torch:compiled+fused-convolutions", "jax")}, "fused-convolutions is for --task infer"),
    ],
)
def test_settings_of_requests_are_refused_in_training(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        plan.make(Settings(device="cpu", **changes))
