"""`samestep agree` on the command line, with the fake backends."""

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from compare.machine import environment
from compare.results import result_file
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


AGREE = ("agree", "fake", "other", "--device", "cpu", "--epochs", "1", "--seeds", "2", "--out", "out")
REFUSALS = [
    (["--seeds", "1"], "--seeds 1 is not allowed; allowed: a whole number from 2 to 1000"),
    (["--seeds", "0"], "--seeds 0 is not allowed"),
    (["--seeds", "-2"], "--seeds -2 is not allowed"),
    (["--seeds", "1001"], "--seeds 1001 is not allowed"),
    (["nonesuch"], "unknown contender 'nonesuch'; allowed: BACKEND[:TUNING]"),
    (["other:"], "contender 'other:' has an empty tuning"),
    (["other:warp"], "unknown tuning or knob 'warp'"),
    (
        ["--precision", "tf32"],
        "precision tf32 needs --device cuda; allowed on cpu: float64, float32, bfloat16, float16",
    ),
    (["--precision", "fp8"], "--precision 'fp8' is not allowed; allowed: float64, float32, tf32, bfloat16, float16"),
    (["--device", "cuda"], "--device cuda: this machine has no NVIDIA GPU"),
    (["--workload", "resnet"], "unknown workload 'resnet'"),
    (["--batch-size", "1"], "--batch-size 1 is not allowed"),
    (["--batch-size", "1438"], "batch size 1438 is larger than the training set"),
    (["--epochs", "0"], "--epochs 0 is not allowed"),
    (["--seed", "-1"], "--seed -1 is not allowed"),
    (["--deadline", "0"], "--deadline 0 is not allowed"),
    (["--data", "nowhere"], "workload digits-cnn takes no folder"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSALS, ids=[" ".join(arguments) for arguments, _ in REFUSALS])
def test_what_cannot_be_certified_is_refused_before_any_process(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: False)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    code, out, error = program.run("agree", "fake", "other", *arguments)
    assert (code, out) == (2, "")
    assert error.startswith("samestep: ")
    assert said in error
    assert error.count("\n") == 1
    assert not program.files()


def test_json_is_one_object_and_the_trajectory_is_drawn(program: Program) -> None:
    code, out, error = program.run(*AGREE, "--json")
    assert (code, error) == (0, "")
    result = json.loads(out)
    assert result == result_file.load(program.folder / "out/result.json")
    assert result["command"] == ["samestep", *AGREE, "--json"]
    assert program.files() == ["out", "out/result.json", "out/trajectory.svg"]
    assert ElementTree.parse(program.folder / "out/trajectory.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        ({}, 0, "agreement in float32: pass"),
        ({"fault": "wrong-gradient"}, 1, "first mismatch: batch 64: step1/gradient/dense.kernel (e64 1.0e-06"),
        ({"fault": "nan-loss"}, 1, "first mismatch: trajectory: loss"),
        ({"fault": "exit", "at": "inspect"}, 3, "other: crash, certificate: record: ended with exit code 7"),
    ],
    ids=["agree", "differ", "not finite", "crash"],
)
def test_the_report_ends_with_the_exit_code_of_what_happened(
    program: Program, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, Any], code: int, said: str
) -> None:
    plans.register(monkeypatch, program.folder.parent / "logs", {"other": behaviour})
    returned, out, error = program.run(*AGREE)
    assert (returned, error) == (code, "")
    assert said in " ".join(out.split())
    assert out.endswith("result file: out/result.json\n")
    assert (program.folder / "out/trajectory.svg").exists()


def test_verbose_lists_every_tensor_of_every_case(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for options, count in (((), 0), (("--verbose",), 1)):
        code, out, _ = program.run(*AGREE, *options)
        assert code == 0
        for case in ("batch 64", "batch 2, 9 pixels", "batch 7, 10 pixels"):
            assert out.count(f"step1/update/dense.bias [{case}]") == count
        for column in ("e64, e32", "e32/e64", "noise", "baseline, contender"):
            assert out.count(f"\n{column}: ") == count


def test_without_any_trajectory_none_is_drawn(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = {"fault": "refuse", "at": "open"}
    plans.register(monkeypatch, program.folder.parent / "logs", {"fake": fault, "other": fault})
    code, out, error = program.run(*AGREE)
    assert (code, error) == (3, "")
    assert "scripted refusal" in out
    assert program.files() == ["out", "out/result.json"]
