"""The command `samestep scale`: what it refuses, prints and writes, and its exit codes."""

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from compare.machine import environment
from compare.settings import plan
from compare.settings.options import Settings
from compare.studies import scaling_result
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program

PAIR = ("fake:stock+ddp", "other:stock+ddp")
SMALL = ("--device", "cpu", "--out", "out", "--deadline", "20", "--rounds", "2", "--epochs", "1", "--batch-size", "8")
NO_PICTURE = "samestep: no scaling.svg: no contender has an efficiency on any number of devices\n"


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


REFUSALS = [
    (["nonesuch", "jax"], "unknown contender 'nonesuch'"),
    (["fake:stock+ddp"], "a comparison needs at least two contenders"),
    (["fake:stock+ddp", "other"], "other does not say how it uses several devices; allowed: --parallel WAY, or +WAY"),
    (["jax:parallel=none", "fake:stock+ddp"], "jax:parallel=none does not say how it uses several devices"),
    (["torch", "jax", "--parallel", "nccl"], "--parallel nccl: unknown 'nccl'"),
    (["torch:tuned+sharded", "jax"], "torch has no way 'sharded'; allowed: ddp"),
    ([*PAIR, "--devices", "2,1"], "--devices '2,1' is not allowed; allowed: 2 to 16 whole numbers from 1 to 9999 that"),
    ([*PAIR, "--devices", "1"], "--devices '1' is not allowed"),
    ([*PAIR, "--devices", ""], "--devices '' is not allowed"),
    (
        ["jax", "jax:pmap", "--parallel", "pmap,ddp"],
        "--parallel pmap,ddp: no contender of torch takes ddp; allowed: with a contender of torch that names no way",
    ),
    (
        [*PAIR, "--devices", "1,65", "--batch-size", "2"],
        "--devices 65 is not allowed: 64 parts of this CPU can be used",
    ),
    (
        [*PAIR, "--strong", "--devices", "1,3"],
        "3 devices is not allowed with --strong; allowed: a multiple of 3",
    ),
    ([*PAIR, "--batch-size", "1"], "--batch-size 1 is not allowed; allowed: a whole number from 2"),
    ([*PAIR, "--batch-size", "-4"], "--batch-size -4 is not allowed"),
    ([*PAIR, "--batch-size", "719"], "719 images on each of 2 devices: batch size 1438 is larger than the training"),
    ([*PAIR, "--strong", "--batch-size", "1438"], "samestep: batch size 1438 is larger than the training set"),
    ([*PAIR, "--devices", "1,99999"], "allowed: 2 to 16 whole numbers from 1 to 9999 that increase"),
    ([*PAIR, "--batch-norm", "global"], "--batch-norm 'global' is not allowed; allowed: sync, local"),
    (["fake:stock+ddp", "jax", "--batch-norm", "local"], "--batch-norm local: jax:compiled+sharded is a program over"),
    ([*PAIR, "--workload", "resnet"], "unknown workload 'resnet'"),
    ([*PAIR, "--precision", "fp8"], "--precision 'fp8' is not allowed"),
    ([*PAIR, "--device", "tpu"], "--device 'tpu' is not allowed"),
    ([*PAIR, "--rounds", "1"], "--rounds 1 is not allowed"),
    ([*PAIR, "--quick", "--paper"], "--quick and --paper exclude each other"),
    ([*PAIR, "--out", "file"], "--out file/devices-2: cannot be made"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSALS, ids=[" ".join(case[0]) for case in REFUSALS])
def test_input_that_cannot_be_honoured_is_refused_before_any_process(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    (program.folder / "file").write_text("mine")
    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(environment, "has_cuda", lambda: False)
    monkeypatch.setattr(environment, "is_installed", lambda package: True)
    code, out, error = program.run("scale", *arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(error.split())
    assert program.files() == ["file"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["torch:compiled+ddp", "jax:compiled+sharded"]),
        (["--tuning", "tuned"], ["torch:tuned+ddp", "jax:tuned+sharded"]),
        (["--parallel", "pmap"], ["torch:compiled+ddp", "jax:compiled+pmap"]),
        (["jax:stock+pmap", "jax:stock", "torch:stock"], ["jax:stock+pmap", "jax:stock+sharded", "torch:stock+ddp"]),
    ],
)
def test_contenders_that_do_not_say_so_take_the_usual_way(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], texts: list[str]
) -> None:
    asked: list[Settings] = []

    def note_settings(settings: Settings, **_: Any) -> None:
        asked.append(settings)
        raise SystemExit(0)

    monkeypatch.setattr(plan, "make", note_settings)
    program.run("scale", *arguments, "--devices", "1,4", "--quick", "--device", "cpu")
    assert [(each.contenders, each.devices, each.rounds) for each in asked] == [(texts, 4, 5)]


def test_help_says_what_is_weak_and_what_strong(program: Program) -> None:
    code, out, _ = program.run("scale", "--help")
    text = " ".join(out.split())
    assert code == 0
    assert "Images per step of each device; with --strong of all together." in text
    for option in ("--devices", "--strong", "--parallel", "--batch-norm", "--quick", "--json"):
        assert option in text


def test_a_contender_that_fails_on_some_devices_is_exit_code_3_beside_all_other_figures(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, program.folder.parent / "logs", {"fake": {"most_images": 10}})
    code, out, error = program.run("scale", *PAIR, *SMALL, "--json")
    assert (code, error) == (3, "")
    result = json.loads(out)
    assert result == json.loads((program.folder / "out/result.json").read_text())
    scaling_result.load(program.folder / "out/result.json")
    assert result["command"] == ["samestep", "scale", *PAIR, *SMALL, "--json"]
    ok, short, *others = result["scaling"]
    assert (ok["status"], ok["agreement"], short["status"], short["agreement"]) == ("ok", "pass", "oom", "skipped")
    assert "out of fake memory" in short["reason"]
    assert (short["efficiency"], short["images_per_second"]) == (None, None)
    assert [each["status"] for each in others] == ["ok", "ok"]
    assert others[0]["efficiency"]["estimate"] == pytest.approx(1)
    assert others[1]["absent"]["efficiency"] == "no certificate on 2 devices"
    assert others[1]["images_per_second"] > 0
    parts = ["out", "out/devices-1", "out/devices-1/result.json", "out/devices-2", "out/devices-2/result.json"]
    assert program.files() == [*parts, "out/result.json", "out/scaling.svg"]
    assert ElementTree.parse(program.folder / "out/scaling.svg").getroot().tag.endswith("svg")


def test_contenders_that_disagree_are_exit_code_1_and_have_no_efficiency(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, program.folder.parent / "logs", {"other": {"fault": "wrong-gradient"}})
    code, out, error = program.run("scale", *PAIR, *SMALL)
    assert (code, error) == (1, NO_PICTURE)
    assert out.endswith("result file: out/result.json\n")
    text = " ".join(out.split())
    assert "agreement on 2 devices: fail, first mismatch step1/gradient/dense.kernel" in text
    assert "no efficiency: no agreement on 1 device (fake:stock+ddp on 1; other:stock+ddp on 1)" in text
    assert "INVALID, their times must not be compared" in text
    result = scaling_result.load(program.folder / "out/result.json")
    assert [entry.efficiency for entry in result.scaling] == [None] * 4
    assert all(entry.images_per_second for entry in result.scaling)
    assert not (program.folder / "out/scaling.svg").exists()


def test_a_scaling_that_replaces_another_says_so_and_takes_its_pictures_away(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program.folder / "out").mkdir()
    for name in ("result.json", "scaling.svg", "trajectory.svg", "notes.txt"):
        (program.folder / "out" / name).write_text("older")
    plans.register(monkeypatch, program.folder.parent / "logs", {"other": {"fault": "wrong-gradient"}})
    code, _, error = program.run("scale", *PAIR, *SMALL)
    assert (code, error) == (1, f"samestep: out/result.json was there before, and is replaced\n{NO_PICTURE}")
    left = {path.name for path in (program.folder / "out").iterdir() if path.is_file()}
    assert left == {"result.json", "notes.txt"}
    assert scaling_result.load(program.folder / "out/result.json")
