"""The rungs of a ladder on made-up figures, and the command `samestep ladder` on the fake backend."""

import json
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from compare.base.interface import Refused
from compare.base.statistics import Ratio
from compare.settings.tunings import STOCK
from compare.studies import ladder_report, study
from compare.studies import ladder_rungs as rungs
from compare.studies.ladder_rungs import CHANGES, Ground, Times
from tests.fakebackend import plans
from tests.unit import programs, result_factory
from tests.unit.programs import Program

GPU, CPU = Ground("cuda", "cifar-cnn"), Ground("cpu", "digits-cnn")


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


def script(program: Program, monkeypatch: pytest.MonkeyPatch, **behaviours: dict[str, Any]) -> None:
    plans.register(monkeypatch, program.folder.parent / "logs", behaviours)


def read(program: Program) -> dict[str, dict[str, Any]]:
    """Return the rungs of ladder.json by name."""
    found = json.loads((program.folder / "out" / "ladder.json").read_text())
    return {rung["name"]: rung for rung in found["rungs"]}


def make_times(seconds: float, *, compile_seconds: float | None = None, rounds: int = 3) -> Times:
    spread = (0.999, 1.001, 1.0, 1.002, 0.998)
    return Times({number: seconds * spread[number] for number in range(rounds)}, 0.95, compile_seconds)


@pytest.mark.parametrize(
    ("change", "backend", "tuning", "tunings"),
    [
        ("compiled", "jax", "stock", ["compiled"]),
        ("compiled", "torch", "stock", ["compiled"]),
        ("memory-layout", "torch", "compiled", ["compiled+channels-last"]),
        ("graph-capture", "torch", "compiled", ["compiled+graph-capture", "compiled+fused-optimizer+graph-capture"]),
        ("graph-capture", "torch", "compiled+fused-optimizer", ["compiled+fused-optimizer+graph-capture"]),
        (
            "steps-per-dispatch",
            "torch",
            "compiled+fused-optimizer",
            ["compiled+fused-optimizer+graph-capture+steps-per-dispatch=8"],
        ),
        ("kernel-search", "torch", "stock", ["stock+kernel-search"]),
    ],
)
def test_a_rung_adds_what_it_needs_and_no_more(change: str, backend: str, tuning: str, tunings: list[str]):
    assert GPU.apply(CHANGES[change], backend, tuning, "float32")[: len(tunings)] == tunings


@pytest.mark.parametrize(
    ("ground", "change", "backend", "said"),
    [
        (GPU, "memory-layout", "jax", "always on: images and kernels are NHWC"),
        (GPU, "kernel-search", "jax", "already on"),
        (GPU, "fused-optimizer", "jax", "always on: the update is inside the jitted step"),
        (CPU, "graph-capture", "torch", "needs --device cuda"),
        (CPU, "steps-per-dispatch", "torch", "needs graph-capture"),
    ],
)
def test_a_rung_that_a_backend_does_not_have_says_why(ground: Ground, change: str, backend: str, said: str):
    with pytest.raises(Refused, match=said):
        ground.apply(CHANGES[change], backend, STOCK, "float32")


def test_rungs_that_cannot_be_climbed_have_a_reason():
    reasons = {change.name: reason for change, reason in rungs.choose_changes([], "bfloat16", "cpu")}
    assert list(reasons) == list(CHANGES)
    assert reasons["tf32"] == "needs --device cuda"
    assert reasons["bfloat16"] == "the ladder starts in bfloat16"
    assert "--rungs float16 tries it" in rungs.choose_changes([], "float32", "cpu")[5][1]
    assert [change.name for change, _ in rungs.choose_changes(["pruned", "compiled"], "float32", "cpu")] == [
        "eager",
        "compiled",
        "pruned",
    ]
    with pytest.raises(Refused, match="--rungs nonesuch is not allowed; allowed: eager, compiled"):
        rungs.choose_changes(["nonesuch"], "float32", "cpu")


@pytest.mark.parametrize(
    ("ratio", "kept", "said"),
    [
        (Ratio(0.9, 0.88, 0.92, 0.95), True, None),
        (Ratio(0.9, 0.7, 1.1, 0.95), True, "the interval includes 1"),
        (Ratio(0.995, 0.994, 0.996, 0.95), False, "no gain of 1 %"),
        (Ratio(1.1, 1.05, 1.2, 0.95), False, "slower"),
        (None, False, rungs.TOO_FEW_ROUNDS),
    ],
)
def test_a_rung_is_kept_if_it_gains(ratio: Ratio | None, kept: bool, said: str | None):
    assert rungs.judge_gain(ratio, 0.01) == (kept, said)


def test_rounds_are_paired_only_where_they_are_the_same():
    before, after = make_times(2.0), make_times(1.0)
    paired = rungs.compare_times(before, after, is_same_rounds=True)
    apart = rungs.compare_times(before, after, is_same_rounds=False)
    assert paired is not None
    assert apart is not None
    assert paired.estimate == apart.estimate == pytest.approx(0.5)
    assert paired.high - paired.low < 1e-9 < apart.high - apart.low
    assert rungs.compare_times(before, make_times(1.0, rounds=1), is_same_rounds=False) is None


def test_a_longer_compilation_breaks_even_after_its_steps():
    before, after = make_times(0.002, compile_seconds=1.0), make_times(0.001, compile_seconds=11.0)
    assert rungs.count_break_even_steps(before, after, batch_size=10) == pytest.approx(10 / (0.001 * 10), abs=1)
    assert rungs.count_break_even_steps(after, before, batch_size=10) is None
    assert rungs.count_break_even_steps(make_times(0.002, compile_seconds=20.0), after, batch_size=10) == 0
    assert rungs.count_break_even_steps(make_times(0.002), after, batch_size=10) is None


def test_all_backends_gain_together():
    joined = rungs.join_ratios([Ratio(0.5, 0.4, 0.6, 0.95), Ratio(1.0, 0.9, 1.1, 0.95)])
    assert joined is not None
    assert joined.estimate == pytest.approx(0.5**0.5)
    assert rungs.join_ratios([Ratio(0.5, 0.4, 0.6, 0.95), None]) is None


def test_requests_have_no_knobs_of_training():
    tuning = "compiled+channels-last+fused-optimizer+graph-capture+steps-per-dispatch=8+input=stream"
    assert rungs.make_request_tuning(tuning) == "compiled+channels-last+graph-capture"
    assert rungs.make_request_tuning("fused-optimizer") == STOCK


PAIR = ("--jax", "of_jax.py:model", "--torch", "of_torch.py:model", "--input", "16x16x3", "--classes", "10")
LADDER = ("ladder", "--device", "cpu", "--out", "out", "--store", "store", "--batch-size", "8", "--rounds", "2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fake:compiled"], "allowed: backends such as torch and jax"),
        (["nonesuch"], "unknown contender 'nonesuch'"),
        (["fake", "--rungs", "eager,beauty"], "--rungs beauty is not allowed; allowed: eager, compiled"),
        (["fake", "--prune", "2"], "--prune 2 is not allowed"),
        ([*PAIR, "--prune", "0.5"], "--prune of models of your own is not supported"),
        ([*PAIR, "--rungs", "pruned"], "--prune of models of your own is not supported"),
    ],
)
def test_it_refuses(program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str):
    script(program, monkeypatch)
    code, _, error = program.run(*LADDER, *arguments)
    assert code == 2
    assert said in " ".join(error.split())
    assert not (program.folder / "out").exists()


@pytest.mark.slow
def test_it_climbs_and_the_same_command_goes_on(program: Program, monkeypatch: pytest.MonkeyPatch):
    factors = {"compile": 0.8, "channels-last": 1.3, "fused-optimizer": 0.5}
    script(program, monkeypatch, fake={"knob_factors": factors}, other={"knob_factors": {"compile": 1.2}})
    command = (*LADDER, "fake", "other", "--rungs", "compiled,memory-layout,fused-optimizer,graph-capture,larger-batch")
    code, out, error = program.run(*command, "--latex", "tables.tex")
    assert code == 0, error
    found = read(program)
    fake = {name: rung["contenders"]["fake"] for name, rung in found.items() if rung["contenders"]}
    assert fake["eager"]["contender"] == "fake:stock"
    assert [fake[name]["kept"] for name in ("compiled", "memory-layout", "fused-optimizer", "larger-batch")] == [
        True,
        False,
        True,
        True,
    ]
    assert fake["memory-layout"]["reason"] == "slower"
    assert fake["fused-optimizer"]["contender"] == "fake:stock+compile+fused-optimizer"  # without the lost rung
    assert fake["fused-optimizer"]["ratio"]["estimate"] == pytest.approx(0.5, rel=0.02)
    assert found["fused-optimizer"]["is_same_rounds"]
    assert not found["larger-batch"]["is_same_rounds"]
    assert found["larger-batch"]["batch_size"] == 16
    assert fake["larger-batch"]["ratio"]["estimate"] == pytest.approx(0.5, rel=0.05)
    assert all(each["agreement"] == "pass" for each in fake.values())
    assert found["compiled"]["contenders"]["other"]["kept"] is False
    assert found["larger-batch"]["contenders"]["other"]["contender"] == "other:stock"
    assert found["graph-capture"]["contenders"] == {}
    assert "needs --device cuda" in found["graph-capture"]["reason"]
    assert "graph-capture: skipped" in out
    last = [line.split() for line in out.splitlines() if line.startswith(("before", "after"))]
    assert [line[0] for line in last] == ["before", "after"] * 2
    assert r"\toprule" in (program.folder / "tables.tex").read_text()
    ElementTree.parse(program.folder / "out" / "ladder.svg")
    assert (program.folder / "out" / "ladder.png").stat().st_size > 10_000
    before = (program.folder / "out" / "ladder.json").read_text()
    started = len(plans.started(program.folder.parent / "logs"))
    assert program.run(*command, "--latex", "tables.tex")[0] == 0
    assert len(plans.started(program.folder.parent / "logs")) == started  # every rung was kept
    assert (program.folder / "out" / "ladder.json").read_text() == before


def test_a_faster_rung_that_does_not_agree_is_not_kept(program: Program, monkeypatch: pytest.MonkeyPatch):
    fault = {"knob_factors": {"channels-last": 0.5}, "fault": "wrong-gradient", "only_with": "channels-last"}
    script(program, monkeypatch, fake=fault)
    code, out, _ = program.run(*LADDER, "fake", "--rungs", "memory-layout,fused-optimizer")
    assert code == 0
    fake = {name: rung["contenders"]["fake"] for name, rung in read(program).items()}
    assert fake["memory-layout"]["kept"] is False
    assert fake["memory-layout"]["agreement"] == "fail"
    assert fake["memory-layout"]["reason"].startswith("does not agree")
    assert fake["fused-optimizer"]["contender"] == "fake:stock+fused-optimizer"
    assert "lost, does not agree" in out


def test_a_first_rung_that_fails_is_the_command_s_failure(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch, fake={"fault": "wrong-gradient"})
    code, _, _ = program.run(*LADDER, "fake", "other", "--rungs", "eager")
    assert code == 1


def test_a_first_rung_without_rounds_that_count_is_no_failure(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch)
    figures: dict[str, Any] = {"step_seconds": None, "images_per_second": None}
    both = [result_factory.make_contender(name, **figures) for name in ("torch", "jax")]
    disturbed = result_factory.typed(result_factory.make_result(contenders=both))
    monkeypatch.setattr(study, "run_alone", lambda *_: SimpleNamespace(result=disturbed))
    code, out, _ = program.run(*LADDER, "fake", "other", "--rungs", "eager")
    assert code == 0
    assert f"fake: kept, {rungs.TOO_FEW_ROUNDS}" in out


@pytest.mark.slow
def test_requests_are_timed_where_they_are_asked_for(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch, fake={"step_seconds": 2e-3}, other={"step_seconds": 3e-2})
    code, out, _ = program.run(*LADDER, "fake", "other", "--rungs", "eager", "--latency")
    assert code == 0
    latency = read(program)["eager"]["contenders"]["fake"]["latency_seconds"]
    assert list(latency) == ["1", "32"]
    assert latency["1"]["p50"] <= latency["1"]["p99"]
    slow = read(program)["eager"]["contenders"]["other"]["latency_seconds"]
    assert [sorted(requests) for requests in slow.values()] == [["p50", "p90"]] * 2  # p99 needs more requests
    assert "latency (ms)" in out
    (row,) = [
        line for line in out.splitlines() if line.startswith("eager") and f"{1e3 * slow['1']['p50']:.3g} of 1," in line
    ]
    assert " of 32" in row


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Ratio(0.3, 0.29, 0.31, 0.95), "operations fell to 25%, the time of an image to 30%"),
        (Ratio(0.9, 0.88, 0.92, 0.95), "operations fell to 25%, the time of an image to 90%, less than half as much"),
        (Ratio(0.99, 0.97, 1.01, 0.95), "operations fell to 25%, and the time of an image did not surely fall"),
    ],
)
def test_a_pruned_rung_says_where_operations_fell_and_time_did_not(ratio: Ratio, said: str) -> None:
    contender = make_contender(ratio)
    rung = rungs.Rung(
        name="pruned",
        change="half of the channels are removed",
        contenders={"torch": contender},
        precision="float32",
        batch_size=8,
        prune=0.5,
        is_same_rounds=False,
        reason=None,
        operations=(400, 100),
        parameters=(40, 10),
    )
    ladder = rungs.Ladder(
        rungs=(rung,), workload="x", device="cpu", device_name=None, margin=0.01, rounds=3, command=()
    )
    assert ladder_report.list_remarks(ladder)[-1] == f"    torch: {said}"


def make_contender(ratio: Ratio) -> rungs.RungContender:
    return rungs.RungContender(
        contender="torch:stock",
        step_seconds=None,
        images_per_second=None,
        memory=None,
        compile_seconds=None,
        break_even_steps=None,
        latency_seconds=None,
        test_accuracy=None,
        agreement="pass",
        kept=True,
        ratio=ratio,
        reason=None,
    )
