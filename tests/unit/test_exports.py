"""The files for dashboards, test reports and data frames: what the tools read, and no number without a claim."""

import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from compare.base.interface import Refused
from compare.report import mlflow_export
from compare.report.formats import bencher, github_action, junit, long_csv, parquet
from compare.results import model
from tests.unit import stored
from tests.unit.result_factory import complete, make_comparison, make_contender, make_result, typed

NAME = "digits-cnn, float32, batch 64, cpu: "
METRIC = {
    "type": "object",
    "properties": {key: {"type": "number"} for key in ("value", "lower_value", "upper_value")},
    "required": ["value"],
}
BENCHER = {
    "type": "object",
    "patternProperties": {".+": {"type": "object", "patternProperties": {".+": METRIC}}},
}
"""The rules of bencher.dev/bmf.json."""


def unclaimed() -> list[dict[str, Any]]:
    """Return results without a claim: INVALID, all rounds void, and a failed contender."""
    void = make_result()
    void["voided"] = [{"round": number, "reason": "others"} for number in range(1, 11)]
    failed = make_contender("jax", status="crash", reason='it <broke> & "ended"', step_seconds=None, memory=None)
    invalid = make_comparison(verdict="INVALID", reason="jax failed")
    return [
        make_result(comparisons=[make_comparison(verdict="INVALID")]),
        complete(void),
        make_result(contenders=[make_contender(), failed], comparisons=[invalid]),
    ]


def test_bencher_gets_latency_in_nanoseconds_with_bounds() -> None:
    written = json.loads(bencher.render([typed(make_result())]))
    jsonschema.Draft7Validator(BENCHER).validate(written)
    assert written[f"{NAME}torch"]["latency"] == {"value": 2.5e6, "lower_value": 2.475e6, "upper_value": 2.525e6}
    jax = written[f"{NAME}jax"]
    assert jax["ratio"] == {"value": 0.699, "lower_value": 0.688, "upper_value": 0.711}
    assert jax["throughput"]["lower_value"] < jax["throughput"]["value"] < jax["throughput"]["upper_value"]
    assert jax["peak-memory"] == {"value": 12 * 2**20}
    assert jax["compile-time"] == {"value": 12.34}


@pytest.mark.parametrize("render", [bencher.render, github_action.render, junit.render])
def test_a_pruned_result_keeps_apart_from_the_whole_model(render: Callable[[Sequence[model.Result]], str]) -> None:
    both = [typed(make_result()), typed(make_result(id="x", spec={"prune": 0.5}))]
    written = render(both)
    assert "digits-cnn, float32, batch 64, cpu" in written
    assert "digits-cnn, pruned by 50%, float32, batch 64, cpu" in written
    assert {row[-1] for row in long_csv.make_rows(both)} == {None, 0.5}


@pytest.mark.parametrize("render", [bencher.render, github_action.render, junit.render])
def test_a_deterministic_result_has_a_name_of_its_own(render: Callable[[Sequence[model.Result]], str]) -> None:
    both = [typed(make_result()), typed(make_result(id="x", spec={"deterministic": True}))]
    written = render(both)
    assert "digits-cnn, float32, batch 64, cpu, deterministic" in written
    assert len(written) > 1.8 * len(render(both[:1]))


def test_the_action_gets_what_its_parser_takes() -> None:
    entries = json.loads(github_action.render([typed(make_result())]))
    assert {key for entry in entries for key in entry} == {"name", "unit", "value", "range", "extra"}
    assert len({entry["name"] for entry in entries}) == len(entries)
    step = next(entry for entry in entries if entry["name"] == f"{NAME}jax (step-time)")
    assert (step["unit"], step["range"], step["extra"]) == ("ms", "± 0.01748", "FASTER against torch")
    assert step["value"] == pytest.approx(1.7475)
    assert not [entry for entry in entries if "images-per-second" in entry["name"]]


RENDERERS: list[Callable[[Sequence[model.Result]], str]] = [bencher.render, github_action.render]


@pytest.mark.parametrize("render", RENDERERS, ids=["bencher", "github-action"])
def test_a_result_without_a_claim_gives_no_number(render: Callable[[Sequence[model.Result]], str]) -> None:
    assert [json.loads(render([typed(result)])) for result in unclaimed()] in ([{}] * 3, [[]] * 3)
    assert long_csv.make_rows([typed(result) for result in unclaimed()]) == []


def test_junit_has_a_case_for_each_comparison() -> None:
    results = [make_result(), *unclaimed(), make_result(comparisons=[make_comparison(verdict="INCONCLUSIVE")])]
    root = ElementTree.fromstring(junit.render([typed(result) for result in results]))
    cases = list(root.iter("testcase"))
    ends = [[child.tag for child in case if child.tag != "system-out"] for case in cases]
    assert ends == [[], ["failure"], ["skipped"], ["error"], ["skipped"]]
    counts = {name: root.attrib[name] for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "1", "skipped": "2"}
    assert cases[0].attrib["name"] == "jax / torch"
    assert cases[3][0].attrib["message"] == 'it <broke> & "ended"'
    assert "ratio 0.699, 95 % interval 0.688 to 0.711" in (cases[0].findtext("system-out") or "")


def test_the_long_form_has_one_figure_in_a_row() -> None:
    rows = list(csv.DictReader(io.StringIO(long_csv.render([typed(make_result())]))))
    jax = {row["metric"]: row for row in rows if row["contender"] == "jax"}
    assert list(jax) == ["step-time", "images-per-second", "ratio", "peak-memory", "compile-time"]
    assert (jax["ratio"]["value"], jax["ratio"]["low"], jax["ratio"]["verdict"]) == ("0.699", "0.688", "FASTER")
    assert (jax["compile-time"]["unit"], jax["compile-time"]["low"]) == ("s", "")
    assert {row["task"] for row in rows} == {"train"}


@pytest.mark.parametrize("name", stored.NAMES)
def test_stored_results_are_exported(name: str) -> None:
    result = typed(stored.result(name))
    jsonschema.Draft7Validator(BENCHER).validate(json.loads(bencher.render([result])))
    assert isinstance(json.loads(github_action.render([result])), list)
    ElementTree.fromstring(junit.render([result]))
    long_csv.render([result])


def test_parquet_holds_the_same_table() -> None:
    reader = pytest.importorskip("pyarrow.parquet")
    table = reader.read_table(io.BytesIO(parquet.render([typed(make_result())])))
    assert [tuple(row.values()) for row in table.to_pylist()] == long_csv.make_rows([typed(make_result())])


def test_without_pyarrow_parquet_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Refused, match=r"^--parquet needs pyarrow; install it with: pip install 'samestep\[parquet\]'$"):
        parquet.render([typed(make_result())])


def test_mlflow_gets_a_run_for_each_contender_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/store"
    results = [typed(result) for result in (make_result(), *unclaimed())]
    assert mlflow_export.log(results, uri) == 2
    assert mlflow_export.log(results, uri) == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(mlflow_export.EXPERIMENT)
    runs = {run.data.params["contender"]: run.data for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"torch", "jax"}
    assert (runs["jax"].metrics["ratio"], runs["jax"].metrics["ratio.high"]) == (0.699, 0.711)
    assert (runs["jax"].tags["samestep.verdict"], runs["jax"].tags["samestep.baseline"]) == ("FASTER", "torch")


def test_without_mlflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(Refused, match=r"pip install 'samestep\[mlflow\]'"):
        mlflow_export.log([typed(make_result())], "file:///nowhere")
