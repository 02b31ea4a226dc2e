"""The command `samestep fit`: what it refuses, prints and writes, and its exit codes."""

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from compare.machine import environment
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program

FIT = ("fit", "--device", "cpu", "--out", "out", "--deadline", "20")
MEBIBYTE = 2**20
NEED = {"base_bytes": 64 * MEBIBYTE, "image_bytes": MEBIBYTE}
ROUGH = ("--memory", "70", "--batch-size", "4")


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


def scripted(program: Program, monkeypatch: pytest.MonkeyPatch, **behaviours: dict[str, Any]) -> None:
    plans.register(monkeypatch, program.folder.parent / "logs", behaviours)


REFUSALS = [
    (["nonesuch"], "unknown contender 'nonesuch'"),
    (["fake:"], "empty tuning"),
    (["fake:fast"], "unknown tuning or knob 'fast'"),
    (["fake", "--workload", "resnet"], "unknown workload 'resnet'"),
    (["fake", "--precision", "fp8"], "--precision 'fp8' is not allowed"),
    (["fake", "--precision", "tf32"], "precision tf32 needs --device cuda"),
    (["fake", "--device", "tpu"], "--device 'tpu' is not allowed"),
    (["fake", "--batch-size", "0"], "--batch-size 0 is not allowed"),
    (["fake", "--batch-size", "1"], "--batch-size 1 is not allowed"),
    (["fake", "--batch-size", "-8"], "--batch-size -8 is not allowed"),
    (["fake", "--batch-size", "40000000"], "--batch-size 40000000 is not allowed; allowed: 2 to 33554432"),
    (["fake", "--seed", "-1"], "--seed -1 is not allowed"),
    (["fake", "--memory", "600MiB"], "--memory '600MiB' is not allowed; allowed: a whole number (MIB)"),
    (["fake", "--memory", "0"], "--memory 0 is not allowed; allowed: a whole number of MiB from 1 to"),
    (["fake", "--memory", "-5"], "--memory -5 is not allowed"),
    (["fake", "--memory", str(psutil.virtual_memory().total // MEBIBYTE + 1)], "is not allowed; allowed: a whole"),
    (["fake", "--memory", "many"], "--memory"),
    (["fake", "--memory", "1.5"], "--memory"),
    (["fake", "--deadline", "0"], "--deadline 0 is not allowed"),
    (["fake", "--out", "file"], "--out file: cannot be made"),
    (["fake", "--out", "file/below"], "--out file/below: cannot be made"),
    (["fake", "--rounds", "3"], "No such option: --rounds; the option belongs to compare, "),
    (["fake", "--task", "infer"], "samestep fit has no --task infer; allowed: --task train, or samestep compare"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSALS, ids=[" ".join(case[0]) for case in REFUSALS])
def test_input_that_cannot_be_honoured_is_refused_before_any_process(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    (program.folder / "file").write_text("mine")
    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(environment, "describe", lambda: {"nvidia": {"gpus": []}})  # it asks git
    monkeypatch.setattr(environment, "has_cuda", lambda: False)
    code, out, error = program.run("fit", *arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(error.split())
    assert not list(program.folder.rglob("fit.json"))
    assert (program.folder / "file").read_text() == "mine"


def test_the_table_the_definitions_and_the_file(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(program, monkeypatch, fake=NEED)
    code, out, error = program.run(*FIT, "fake", *ROUGH)
    assert (code, error) == (0, "")
    text = " ".join(out.split())
    assert text.startswith("digits-cnn on cpu in float32: synthetic 8x8x1 images, seed 0")
    assert "memory: 7 does not fit" in text
    assert "fake: batch 7 in 70.0 MiB: oom: try: block: RuntimeError: out of fake memory" in text
    for definition in ("largest batch: most images", "smallest memory: smallest limit", "limit: "):
        assert definition in text
    assert out.endswith("result file: out/fit.json\n")
    assert program.files() == ["out", "out/fit.json"]
    written = json.loads((program.folder / "out" / "fit.json").read_text())
    assert set(written) == {"schema_version", "id", "created", "command", "spec", "environment", "contenders"}
    assert written["command"] == ["samestep", *FIT, "fake", *ROUGH]
    assert written["spec"]["memory_limit_bytes"] == 70 * MEBIBYTE
    (contender,) = written["contenders"]
    assert (contender["largest_batch"], contender["largest_batch_exact"]) == (6, True)
    assert f"{contender['smallest_memory_bytes'] / MEBIBYTE:,.1f}" in text
    assert f"fake: batch 4 in {contender['largest_failed_memory_bytes'] / MEBIBYTE:,.1f} MiB: oom: try: " in text


def test_json_is_the_file_alone(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(program, monkeypatch, fake=NEED)
    code, out, error = program.run(*FIT, "fake", *ROUGH, "--json")
    assert (code, error) == (0, "")
    assert json.loads(out) == json.loads((program.folder / "out" / "fit.json").read_text())


def test_a_contender_that_failed_is_exit_code_3_beside_the_others_figures(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(program, monkeypatch, fake={"fault": "raise", "at": "open"}, other=NEED)
    code, out, error = program.run(*FIT, "fake", "other", *ROUGH)
    assert (code, error) == (3, "")
    text = " ".join(out.split())
    assert "fake: crash, batch 2: try: open: RuntimeError: scripted failure" in text
    assert "memory: 7 does not fit" in text


def test_without_memory_a_cpus_limit_is_half_of_what_is_available(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()._replace(available=200 * MEBIBYTE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    scripted(program, monkeypatch, fake=NEED)
    code, _, _ = program.run(*FIT, "fake", "--batch-size", "4")
    assert code == 0
    written = json.loads((program.folder / "out" / "fit.json").read_text())
    assert written["spec"]["memory_limit_bytes"] == written["spec"]["most_memory_bytes"] == 100 * MEBIBYTE
    assert written["contenders"][0]["largest_batch"] == 36
