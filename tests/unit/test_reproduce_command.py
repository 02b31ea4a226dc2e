"""`samestep reproduce` on the command line, with the fake backends: real runs, scripted time."""

import io
import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from compare.machine import environment
from compare.reproduce import bundle
from compare.reproduce import reproduction_report as report
from compare.results import result_file
from compare.results.model import from_json
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program
from tests.unit.result_factory import make_result
from tests.unit.stage import Result, Stage

pytestmark = pytest.mark.slow

NOISE = {"step_noise": 0.001, "launch_noise": 0.001}
SLOW = {"fake": {"step_seconds": 0.004, "seed": 1, **NOISE}, "other": {"step_seconds": 0.008, "seed": 2, **NOISE}}


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run of SLOW."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        return Stage(folder, patch).run(script=SLOW, rounds=3)


@pytest.fixture
def stored(program: Program, slow: Result) -> Path:
    """The file of a run of SLOW, in the program's folder."""
    path = program.folder / "stored.json"
    path.write_text(json.dumps(slow))
    return path


def scripted(program: Program, monkeypatch: pytest.MonkeyPatch, script: dict[str, dict[str, Any]]) -> None:
    plans.register(monkeypatch, program.folder.parent / "logs", script)


def test_a_run_that_comes_again_is_reproduced_claim_by_claim(
    program: Program, monkeypatch: pytest.MonkeyPatch, stored: Path
) -> None:
    scripted(program, monkeypatch, SLOW)
    changed = result_file.load(stored)
    changed["environment"] |= {"python": "3.9\x1b[2J", "nvidia": {"driver": "1.0", "gpus": [{"name": "NVIDIA Old"}]}}
    result_file.replace(stored, changed)
    code, out, error = program.run("reproduce", "stored.json", "--rounds", "4", "--out", "again")
    text = " ".join(out.split())
    assert (code, error) == (0, "")
    assert text.index("3.9?[2J") < text.index("nvidia.gpus[0].name NVIDIA Old") < text.index("REPRODUCED")
    assert "data_sha256" not in text
    assert "weights_sha256" not in text
    assert "other against fake: speed: SLOWER, ratio " in text
    assert "NOT REPRODUCED" not in text.replace("0 NOT REPRODUCED", "")
    assert "8 claims: 8 REPRODUCED, 0 NOT REPRODUCED, 0 INCONCLUSIVE" in text
    assert "fake: step time 4.003 ms stored, 4.00" in text
    assert out.endswith("result file: again/result.json\n")
    again = result_file.load(program.folder / "again" / "result.json")
    assert again["command"] == ["samestep", "reproduce", "stored.json", "--rounds", "4", "--out", "again"]
    assert again["spec"] == changed["spec"] | {"rounds": 4, "rounds_requested": 4}
    assert program.files() == ["again", "again/reproduction.json", "again/result.json", "stored.json"]


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ({**SLOW, "other": SLOW["other"] | {"step_seconds": 0.01}}, 1, "the intervals exclude each other"),
        ({}, 1, "this run contradicts the verdict"),  # equally fast
        ({**SLOW, "other": {"fault": "wrong-gradient"}}, 1, "other against fake: agreement: pass stored, fail here"),
        ({**SLOW, "other": {"fault": "skip"}}, 1, "no speed may be claimed here: other did not do the work"),
        ({**SLOW, "other": {"fault": "exit", "at": "open"}}, 3, "other: training: trained stored, crash here"),
        ({**SLOW, "fake": {"fault": "exit", "at": "open"}}, 3, "weights_sha256"),
    ],
    ids=["another size", "contradicted", "no agreement", "not proved", "crash", "baseline crash"],
)
def test_the_exit_code_says_what_did_not_come_again(
    program: Program, monkeypatch: pytest.MonkeyPatch, stored: Path, script: dict[str, Any], code: int, said: str
) -> None:
    scripted(program, monkeypatch, script)
    returned, out, error = program.run("reproduce", "stored.json", "--rounds", "3", "--out", "again")
    assert (returned, error) == (code, "")
    assert said in " ".join(out.split())


def test_void_rounds_are_told_with_their_reason() -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    voided = [{"round": 2, "reason": "other programs kept 1.44 cores busy"}]
    report.render_claims([], from_json(make_result()), from_json(make_result(voided=voided)), console)
    text = console.export_text()
    assert "round 2 is void: other programs kept 1.44 cores busy" in text
    assert "\n\n\n" not in text


def test_json_for_a_bundle_is_one_object_the_same_as_in_the_file(
    program: Program, monkeypatch: pytest.MonkeyPatch, stored: Path
) -> None:
    scripted(program, monkeypatch, {**SLOW, "fake": SLOW["fake"] | {"fault": "settings"}})
    (program.folder / "stored.zip").write_bytes(bundle.make(stored.read_bytes()))
    code, out, error = program.run("reproduce", "stored.zip", "--rounds", "2", "--out", "again", "--json")
    told = json.loads(out)
    assert (code, error) == (1, "")
    assert told == json.loads((program.folder / "again" / "reproduction.json").read_text())
    assert told["stored"]["id"] == result_file.load(stored)["id"]
    assert told["result"] == result_file.load(program.folder / "again" / "result.json")["id"]
    changed = {"place": "fake: settings.compute_dtype", "stored": "float32", "here": "float16"}
    assert told["differences"] == [changed]
    assert {claim["outcome"] for claim in told["claims"]} == {"REPRODUCED", "NOT REPRODUCED", "INCONCLUSIVE"}


def test_a_certificate_is_made_again_over_as_many_seeds(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    certificate = Stage(tmp_path_factory.mktemp("certified"), monkeypatch).agree(script=SLOW, seeds=3)
    (program.folder / "stored.json").write_text(json.dumps(certificate))
    scripted(program, monkeypatch, SLOW)
    code, out, error = program.run("reproduce", "stored.json", "--out", "again")
    text = " ".join(out.split())
    assert (code, error) == (0, "")
    assert "5 claims: 5 REPRODUCED" in text
    assert "fake: loss by step" in text
    assert "points over 3 seeds" in text
    again = result_file.load(program.folder / "again" / "result.json")
    assert [len(each) for each in again["agreement"]["accuracies"].values()] == [3, 3]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"schema_version": 2}, "stored.json: was written by a newer samestep (schema_version 2"),
        ({"spec": {"device": "tpu"}}, "spec.device is 'tpu'"),
        ({"contenders": []}, "contenders is []"),
        ({"mnist": "nowhere"}, "--data nowhere: no such folder"),
        (
            {"spec": {"device": "cuda"}},
            "the result was measured on a GPU, and this machine has no NVIDIA GPU that NVML can see; allowed: a ",
        ),
    ],
    ids=["newer", "broken", "empty", "data", "cuda"],
)
def test_what_cannot_be_repeated_is_refused_before_any_process(
    program: Program, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(environment, "count_visible_gpus", lambda: 0)
    mnist = {"workload": "mnist-cnn", "image": [28, 28, 1], "data_folder": "nowhere"}
    result = make_result(spec=mnist) if "mnist" in content else make_result(**content)
    (program.folder / "stored.json").write_text(json.dumps(result))
    code, out, error = program.run("reproduce", "stored.json", "--out", "again")
    assert (code, out) == (2, "")
    assert error.startswith("samestep: ")
    assert error.count("\n") == 1
    assert said in error
    assert program.files() == ["stored.json"]


@pytest.mark.parametrize("named", ["kept/result.json", "kept"])
def test_the_stored_file_is_never_overwritten(program: Program, slow: Result, named: str) -> None:
    (program.folder / "kept").mkdir()
    path = program.folder / "kept" / "result.json"
    path.write_text(json.dumps(slow))
    code, out, error = program.run("reproduce", named, "--out", "kept")
    assert (code, out) == (2, "")
    assert error == "samestep: --out kept would overwrite kept/result.json; allowed: another folder\n"
    assert json.loads(path.read_text()) == slow


def test_a_result_that_contradicts_itself_is_not_repeated(program: Program, stored: Path) -> None:
    changed = result_file.load(stored)
    changed["agreement"]["status"] = "fail"
    result_file.replace(stored, changed)
    code, out, error = program.run("reproduce", "stored.json", "--out", "again")
    assert (code, out) == (2, "")
    assert error == "samestep: stored.json: agreement.status is fail; allowed by its pairs: pass\n"
    assert program.files() == ["stored.json"]
