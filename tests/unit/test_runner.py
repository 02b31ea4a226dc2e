"""Whole runs with the fake backends: real worker, real processes, real arithmetic, scripted time."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compare.base.commands import Command, ProveWork, Restarted, TrainingStart, WorkProof
from compare.execution import reproducibility, work_proof
from compare.execution.launcher import BESIDE_OTHERS
from compare.execution.run_state import ContenderRun
from compare.settings import contenders
from tests.fakebackend import plans
from tests.unit.stage import Result, Stage, exit_code


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_an_a_a_run_finds_no_difference_whatever_is_printed(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    noise = {"step_noise": 0.001, "launch_noise": 0.0005, "seed": 1}
    result = stage.run("fake", "fake", script={"fake": {"fault": "print", "at": "settings", **noise}}, rounds=4)
    assert capfd.readouterr() == ("", "")
    assert [contender["name"] for contender in result["contenders"]] == ["fake", "fake#2"]
    (comparison,) = result["comparisons"]
    assert (comparison["verdict"], comparison["rounds"], comparison["reason"]) == ("EQUIVALENT", 4, None)
    assert result["agreement"]["status"] == "pass"
    assert exit_code(result) == 0
    assert stage.progress[-1] == ("timed rounds", 4, 4)


def test_compilation_is_reported_cold_and_from_the_cache_and_is_part_of_no_step_time(stage: Stage) -> None:
    result = stage.run(
        "fake", "other", script={"fake": {"compile_seconds": 8.0}}, rounds=2, agreement=False, cold_compile=True
    )
    first, other = result["contenders"]
    assert first["compile_seconds"] == pytest.approx(8, rel=0.01)
    # Process 0 trains, 1 measures memory, 2 and 3 are timed.
    assert first["cached_compile_seconds"] == pytest.approx((2 + 1) / 2, rel=0.01)
    assert other["cached_compile_seconds"] == pytest.approx(0, abs=1e-9)
    assert first["step_seconds"]["median"] == pytest.approx(other["step_seconds"]["median"])


def test_each_contenders_variables_are_in_the_result(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "compare.machine.variables.make_child_environment", lambda name, *_, **__: {"XLA_FLAGS": f"--of={name}"}
    )
    result = stage.run("fake", "other", agreement=False)
    assert [each["variables"]["XLA_FLAGS"] for each in result["contenders"]] == ["--of=fake", "--of=other"]


def test_three_contenders_get_their_scripted_ratios_in_palindromic_order(stage: Stage) -> None:
    noise = {"launch_noise": 0.001, "step_noise": 0.003}
    script = {
        "fake": {"step_seconds": 0.004, "seed": 1, **noise},
        "other": {"step_seconds": 0.008, "seed": 2, **noise},
        "third": {"step_seconds": 0.002, "seed": 3, **noise},
    }
    result = stage.run("fake", "other", "third", script=script, rounds=3, cold_compile=True)
    slower, faster = result["comparisons"]
    assert slower["ratio"]["estimate"] == pytest.approx(2, rel=0.01)
    assert faster["ratio"]["estimate"] == pytest.approx(0.5, rel=0.01)
    assert (slower["verdict"], faster["verdict"]) == ("SLOWER", "FASTER")
    assert [pair["status"] for pair in result["agreement"]["pairs"]] == ["pass", "pass"]
    for contender, seconds in zip(result["contenders"], (0.004, 0.008, 0.002), strict=True):
        _check_figures(contender, seconds)
    # A round ends with its blocks, a lead-in before each, and then three blocks of each contender's proof
    # and its first steps again.
    order = [name for name, *_ in stage.calls("run")[-48:-12:2]]
    assert order == ["fake", "other", "third", "third", "other", "fake"] * 3
    processes = {pid for _, number, pid, _ in stage.calls("open") if int(number) >= 3}
    assert len(processes) == 9  # three rounds of three fresh processes


def _check_figures(contender: Result, seconds: float) -> None:
    step = contender["step_seconds"]
    assert step["median"] == pytest.approx(seconds, rel=0.01)
    assert [len(blocks) for blocks in step["samples"]] == [6, 6, 6]
    assert step["steps_per_block"] * seconds >= 0.98 * 0.02
    assert contender["images_per_second"] == pytest.approx(64 / step["interval"]["estimate"], rel=1e-12)
    assert contender["training"]["test_accuracy"] > 0.5
    assert contender["memory"]["live_peak_bytes"] == 1 << 20
    assert 0 < contender["memory"]["process_bytes"] < 10 << 20  # its imports alone are four times as much
    assert contender["first_step_seconds"] == pytest.approx(seconds, rel=0.02)
    assert contender["status"] == "ok"


# Processes of one contender: 0 trains, 1 certifies, 2 measures memory, from 3 on one a round.
@pytest.mark.parametrize(
    ("name", "process", "at", "fault", "status", "phase"),
    [
        ("fake", 0, "open", "refuse", "refused", "training: open: scripted refusal"),
        ("other", 0, "start", "exit", "crash", "training: starting: ended with exit code 7"),
        ("other", 0, "logits", "raise", "crash", "training: train: RuntimeError: scripted failure"),
        ("other", 1, "inspect", "exit", "crash", "certificate: .*: ended with exit code 7"),
        ("fake", 2, "memory", "oom", "oom", "usage: memory: MemoryError: scripted: 8 GiB wanted"),
        ("fake", 4, "wait", "fork-die", "crash", r"timed rounds: warm_up: killed by signal 9 \(SIGKILL\)"),
        ("other", 4, "export", "hang", "timeout", "timed rounds: warm_up took longer than its deadline of "),
    ],
)
def test_one_contenders_failure_leaves_the_others_figures(
    stage: Stage, name: str, process: int, at: str, fault: str, status: str, phase: str
) -> None:
    script = {name: {"fault": fault, "at": at, "process": process}}
    result = stage.run(script=script, deadline=plans.deadline(fault), cold_compile=True)
    good, bad = sorted(result["contenders"], key=lambda each: each["name"] == name)
    assert (good["status"], good["reason"], bad["status"]) == ("ok", None, status)
    assert re.match(phase, bad["reason"])
    assert good["step_seconds"]["median"] == pytest.approx(0.004)
    assert len(good["step_seconds"]["samples"]) == 2
    assert good["memory"] is not None
    assert good["training"] is not None
    (comparison,) = result["comparisons"]
    assert comparison["verdict"] == "INVALID"
    assert comparison["reason"].startswith(f"{name} failed ({status}): ")
    assert (bad["training"] is None) == (process == 0)
    assert result["agreement"]["status"] == ("skipped" if process <= 1 else "pass")
    assert exit_code(result) == 3


@pytest.mark.parametrize(("failing", "beside"), [("fake", True), ("other", False)])
def test_nothing_is_recorded_of_one_who_has_nobody_to_be_compared_with(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, failing: str, beside: bool
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", beside)
    result = stage.run(script={failing: {"fault": "raise", "at": "run", "process": 0}}, cold_compile=True)
    assert not stage.calls("inspect")
    (left,) = (each for each in result["contenders"] if each["name"] != failing)
    assert left["status"] == "ok"
    assert left["training"] is not None
    assert len(left["step_seconds"]["samples"]) == 2
    assert result["agreement"]["status"] == "skipped"


@pytest.mark.parametrize("failing", ["fake", "other"])
def test_a_failure_beside_its_records_leaves_no_certificate(stage: Stage, failing: str) -> None:
    result = stage.run(script={failing: {"fault": "raise", "at": "logits"}})
    statuses = {each["name"]: each["status"] for each in result["contenders"]}
    assert statuses.pop(failing) == "crash"
    assert list(statuses.values()) == ["ok"]
    assert result["agreement"]["status"] == "skipped"


def test_every_contender_failing_is_still_a_result(stage: Stage) -> None:
    fault = {"fault": "refuse", "at": "open"}
    result = stage.run(script={"fake": fault, "other": fault})
    assert [contender["status"] for contender in result["contenders"]] == ["refused", "refused"]
    assert result["spec"]["weights_sha256"] is None
    assert exit_code(result) == 3


@pytest.mark.parametrize(
    ("fault", "mismatch"),
    [("wrong-gradient", "step1/gradient/dense.kernel (e64 1.0e-06"), ("nan-gradient", "is not finite")],
)
def test_a_wrong_gradient_is_named_and_forbids_any_claim(stage: Stage, fault: str, mismatch: str) -> None:
    result = stage.run(script={"other": {"fault": fault}})
    agreement, (comparison,) = result["agreement"], result["comparisons"]
    assert agreement["status"] == "fail"
    assert mismatch in agreement["first_mismatch"]
    assert "dense.kernel" in agreement["first_mismatch"]
    assert comparison["verdict"] == "INVALID"
    assert comparison["reason"] in (
        f"no agreement with fake: {agreement['first_mismatch']}",
        "other did not do the work that was timed: the loss was not finite at step 2 of a timed round",
    )
    assert exit_code(result) == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("skip", "steps were dispatched but"),
        ("never-wait", "steps were dispatched but 0 trained"),
        ("nan-loss", "the loss was not finite at step 6 of a timed round"),
        ("late", "after wait() returned, "),
        ("frozen", "other did not do the work that was timed: the contender changed while it was timed: from the same"),
        ("aged", "weights and batches, the loss at step 1 is "),
        ("settings", "unequal effective settings: compute_dtype is float32 against float16"),
    ],
)
def test_work_that_was_not_done_is_invalid_with_the_reason(stage: Stage, fault: str, reason: str) -> None:
    result = stage.run(script={"other": {"fault": fault, "step_seconds": 0.02}}, deadline=30.0)
    (comparison,) = result["comparisons"]
    assert comparison["verdict"] == "INVALID"
    assert reason in comparison["reason"]
    assert exit_code(result) == 1


def test_no_later_proof_hides_what_an_earlier_one_found() -> None:
    proofs = [WorkProof(9, 9, 7, 1.0, 0.5), WorkProof(9, 9, None, 1.0, 0.0)]
    child: Any = SimpleNamespace(call=lambda *_, **__: proofs.pop(0))
    plan: Any = SimpleNamespace(precision="float32", task="train")
    outcome = ContenderRun(contenders.parse(["torch"], 1)[0])
    work_proof.prove(plan, child, outcome)
    assert not proofs
    assert outcome.unproven == "the loss was not finite at step 7 of a timed round"


@pytest.mark.parametrize(("changed", "asked"), [(0, 1), (2, 3), (3, 3)])
def test_what_changes_every_time_is_a_change(changed: int, asked: int) -> None:
    before = TrainingStart(4, [2.0], {"kernel": 0.1})
    calls = list[str]()

    def call(command: Command[Any]) -> WorkProof | Restarted:
        if isinstance(command, ProveWork):
            return WorkProof(9, 9, None, 1.0, 0.0)
        calls.append(command.name)
        return Restarted(before, replace(before, moved={"kernel": 0.0}) if len(calls) <= changed else before)

    child: Any = SimpleNamespace(call=call)
    plan: Any = SimpleNamespace(precision="float32", task="train")
    outcome = ContenderRun(contenders.parse(["torch"], 1)[0])
    work_proof.prove(plan, child, outcome)
    assert calls == ["restart"] * asked
    assert (outcome.unproven is None) is (changed < 3)


def test_an_export_that_is_slow_by_itself_is_no_work_left_undone(stage: Stage) -> None:
    # After that of the warm-up, and the two that say how long one takes.
    stalls = {"fault": "stall", "at": "export", "visit": 3}
    result = stage.run(script={"other": {**stalls, "step_seconds": 0.02}, "fake": {"step_seconds": 0.02}}, rounds=3)
    (comparison,) = result["comparisons"]
    assert (comparison["verdict"], comparison["reason"]) == ("EQUIVALENT", None)


def test_a_contender_that_is_not_what_it_is_called_is_invalid(stage: Stage) -> None:
    result = stage.run("fake", "other:compile", script={"other": {"fault": "uncompiled"}})
    assert result["contenders"][1]["unproven"] == "compile asked for and not in effect"
    assert result["comparisons"][0]["verdict"] == "INVALID"
    result = stage.run("fake", "other", script={"other": {"fault": "uncompiled"}})
    assert result["contenders"][1]["unproven"] is None


def test_what_is_wrong_at_the_timed_batch_alone_is_found(stage: Stage) -> None:
    result = stage.run(batch_size=256)
    gates = {gate["name"]: gate for gate in result["agreement"]["gates"]}
    assert gates["update"]["value"] == pytest.approx(1, abs=1e-6)
    result = stage.run(batch_size=256, script={"other": {"fault": "zero-gradient-of-many"}})
    gates = {gate["name"]: gate for gate in result["agreement"]["gates"]}
    assert (gates["semantic"]["passed"], gates["precision"]["passed"]) == (True, True)
    assert (gates["update"]["passed"], gates["update"]["value"]) == (False, None)
    assert result["agreement"]["first_mismatch"].startswith("the update at the batch that is timed is another: ")
    assert result["comparisons"][0]["verdict"] == "INVALID"


def test_a_round_without_its_proof_is_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs: list[str] = []

    def interrupted(plan: Any, child: Any, outcome: Any) -> None:
        proofs.append(outcome.contender.name)
        if len(proofs) == 6:  # the last contender's, of the third round
            raise KeyboardInterrupt
        prove(plan, child, outcome)

    prove = work_proof.prove_start
    monkeypatch.setattr(work_proof, "prove_start", interrupted)
    result = stage.run(rounds=4)
    assert [len(each["step_seconds"]["samples"]) for each in result["contenders"]] == [2, 2]
    assert None not in result["telemetry"]["foreign_cores"]


def test_rounds_that_train_otherwise_than_the_training_run_are_unproven(stage: Stage) -> None:
    result = stage.run(script={"other": {"fault": "unlike"}}, agreement=False)
    assert result["contenders"][0]["unproven"] is None
    assert result["contenders"][1]["unproven"].startswith("the loss at step 1 of a timed round is ")


@pytest.mark.parametrize(
    ("timed", "precision", "step"),
    [
        ((2.0, 1.5, 1.0), "float32", None),
        ((2.0001, 1.5, 1.0), "float32", None),
        ((2.001, 1.5, 1.0), "float32", 1),
        ((2.001, 1.5, 1.0), "tf32", None),
        ((2.0, 1.6, 1.12), "float32", None),
        ((2.0, 2.0, 1.0), "float32", 2),
        ((2.0, 1.5, None), "bfloat16", 3),
    ],
)
def test_losses_of_two_launches(timed: Sequence[float | None], precision: str, step: int | None) -> None:
    found = reproducibility.describe_difference(timed, (2.0, 1.5, 1.0), precision)
    assert (found is None) if step is None else (found or "").startswith(f"the loss at step {step} of a timed round")


def test_a_value_that_json_cannot_carry_is_the_contenders_failure(stage: Stage) -> None:
    result = stage.run(script={"other": {"fault": "nan-setting"}})
    assert result["contenders"][1]["status"] == "crash"
    assert "not JSON compliant" in result["contenders"][1]["reason"]


def test_without_a_certificate_there_is_no_claim(stage: Stage) -> None:
    result = stage.run("fake", "other:steps-per-dispatch=7", agreement=False)
    assert result["contenders"][1]["step_seconds"]["steps_per_block"] % 7 == 0
    (comparison,) = result["comparisons"]
    assert (comparison["verdict"], result["agreement"]["status"]) == ("INVALID", "skipped")
    assert comparison["reason"] == "agreement was skipped, so nothing shows that both sides computed the same thing"
    assert math.isclose(comparison["ratio"]["estimate"], 1, rel_tol=1e-6)
    assert exit_code(result) == 0
    assert all(contender["memory"]["process_bytes"] is not None for contender in result["contenders"])
