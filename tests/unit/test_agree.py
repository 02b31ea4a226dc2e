"""Certificates over all cases and by whole training runs, with the fake backends: real processes and arithmetic."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare.agreement import certificate, trajectory
from compare.agreement.certificate import Certificate
from compare.agreement.floors import Noise
from compare.base import tensors
from compare.execution import trajectories
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.execution.trajectories import TrainingRuns
from tests.fakebackend import plans
from tests.unit.stage import Result, Stage, exit_code

GATES = ["semantic", "scaling", "precision", "trajectory", "accuracy", "settings"]
CASES = ["batch 64", "batch 2, 9 pixels", "batch 7, 10 pixels"]
STEPS = 22  # of one epoch of the digits in batches of 64


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def gate(result: Result, name: str) -> Result:
    (found,) = [each for each in result["agreement"]["gates"] if each["name"] == name]
    return found


def test_equal_backends_pass_every_gate_in_every_case(stage: Stage) -> None:
    result = stage.agree(seeds=3)
    agreement = result["agreement"]
    assert [each["name"] for each in agreement["gates"]] == GATES
    assert (agreement["status"], agreement["first_mismatch"], exit_code(result)) == ("pass", None, 0)
    (pair,) = agreement["pairs"]
    cases = [re.findall(r"\[(.+)\]", tensor["name"])[0] for tensor in pair["tensors"]]
    assert list(dict.fromkeys(cases)) == CASES
    first = pair["tensors"][0]
    assert first["name"] == "step1/activation/dense [batch 64]"
    assert 0 < first["e64"] < 1e-14 < first["e32"] < 1e-6
    assert None not in (first["noise"], first["baseline_error"], first["contender_error"])
    phases, done, totals = zip(*stage.progress, strict=True)
    assert "certify and train: fake, other" in phases
    assert {phase.partition(":")[0] for phase in phases} == {"certify and train"}
    assert (set(totals), done[0], sorted(done)) == ({17}, 0, list(done))


def test_losses_envelopes_and_accuracies_over_seeds_are_kept_and_nothing_is_timed(stage: Stage) -> None:
    result = stage.agree(seeds=3)
    assert result["comparisons"] == []
    for contender in result["contenders"]:
        assert contender["step_seconds"] is None
        curve = result["agreement"]["trajectory"][contender["name"]]
        assert len(curve["loss"]) == len(curve["envelope"]) == STEPS
        assert sum(curve["loss"]) / STEPS == pytest.approx(contender["training"]["loss"][0])
        assert 0 < curve["envelope"][-1] < 1e-5
        accuracies = result["agreement"]["accuracies"][contender["name"]]
        assert len(set(accuracies)) == 3  # other weights and another split of the data
        assert accuracies[0] == contender["training"]["test_accuracy"]


def test_of_micro_batches_each_is_as_small_and_as_odd_as_a_whole_batch_would_be(stage: Stage) -> None:
    result = stage.agree(accumulate=4, batch_size=720, precision="float64")
    (pair,) = result["agreement"]["pairs"]
    cases = [re.findall(r"\[(.+)\]", tensor["name"])[0] for tensor in pair["tensors"]]
    assert list(dict.fromkeys(cases)) == ["batch 64", "batch 8, 9 pixels", "batch 28, 10 pixels"]
    assert (result["spec"]["accumulate"], exit_code(result)) == (4, 0)


def test_the_native_case_has_at_most_64_images_and_float64_has_no_precision_gate(stage: Stage) -> None:
    result = stage.agree(batch_size=128, precision="float64")
    assert [each["name"] for each in result["agreement"]["gates"]] == [name for name in GATES if name != "precision"]
    assert gate(result, "semantic")["worst_tensor"].partition(" [")[2].rstrip("]") in CASES
    assert exit_code(result) == 0


@pytest.mark.parametrize(
    ("fault", "mismatch"),
    [
        ("wrong-gradient", r"step1/gradient/dense\.kernel \(e64 1\.0e-06, e32/e64 1\.0e\+00\)"),
        ("nan-gradient", r"step1/gradient/dense\.kernel is not finite in the contender"),
        ("wrong-shape", r"step1/activation/dense has shape \[64, 10\] in the baseline, \[1, 10\] in the contender"),
        ("wrong-dtype", r"step1/loss is float64 in the baseline, float16 in the contender"),
    ],
)
def test_the_first_tensor_that_differs_is_named(stage: Stage, fault: str, mismatch: str) -> None:
    result = stage.agree(script={"other": {"fault": fault}})
    assert re.fullmatch(f"batch 64: {mismatch}", result["agreement"]["first_mismatch"])
    failed = [gate(result, name) for name in ("semantic", "scaling")]
    assert not any(each["passed"] for each in failed)
    if fault != "wrong-gradient":  # no arithmetic was done on what cannot be compared
        assert [each["value"] for each in failed] == [None, None]
        assert gate(result, "precision")["value"] is None
    assert exit_code(result) == 1


def test_of_three_contenders_the_one_that_differs_fails(stage: Stage) -> None:
    result = stage.agree("fake", "other", "third", script={"third": {"fault": "wrong-gradient"}})
    pairs = result["agreement"]["pairs"]
    assert [(pair["contender"], pair["status"]) for pair in pairs] == [("other", "pass"), ("third", "fail")]
    assert result["agreement"]["status"] == "fail"
    assert result["agreement"]["first_mismatch"] == pairs[1]["first_mismatch"]


def test_a_loss_that_is_not_finite_in_training_fails_the_trajectory(stage: Stage) -> None:
    result = stage.agree(script={"other": {"fault": "nan-loss"}})
    found = gate(result, "trajectory")
    assert (found["value"], found["passed"], found["worst_tensor"]) == (None, False, "loss")
    assert result["agreement"]["first_mismatch"] == "trajectory: loss"
    assert result["agreement"]["trajectory"]["other"]["loss"][-1] is None
    assert exit_code(result) == 1


def test_unequal_settings_fail_although_every_tensor_agrees(stage: Stage) -> None:
    result = stage.agree(script={"other": {"fault": "settings"}})
    assert [each["name"] for each in result["agreement"]["gates"] if not each["passed"]] == ["settings"]
    expected = "unequal effective settings: compute_dtype is float32 against float16"
    assert result["agreement"]["first_mismatch"] == expected
    assert exit_code(result) == 1


def test_deterministic_contenders_are_equal_bit_for_bit(stage: Stage) -> None:
    found = gate(stage.agree(deterministic=True), "determinism")
    assert (found["value"], found["passed"], found["worst_tensor"]) == (0, True, None)


@pytest.mark.parametrize("side", ["fake", "other"])
def test_a_contender_that_sums_in_another_order_each_time_is_not_deterministic(stage: Stage, side: str) -> None:
    result = stage.agree(script={side: {"fault": "unsteady"}}, deterministic=True)
    failed = [each for each in result["agreement"]["gates"] if not each["passed"]]
    assert [(each["name"], each["worst_tensor"]) for each in failed] == [("determinism", "step1/activation/dense")]
    assert failed[0]["value"] > 1
    assert result["agreement"]["first_mismatch"] == "determinism: step1/activation/dense"
    assert exit_code(result) == 1


# One process of a contender trains, then records, and a baseline makes its noise. Where memory runs out beside others,
# the job is done again in another process: it must run out there, too.
@pytest.mark.parametrize(
    ("process", "at", "fault", "status", "reason"),
    [
        (0, "inspect", "exit", "crash", "certificate: record: ended with exit code 7"),
        (None, "settings", "oom", "oom", "trajectory: settings: MemoryError: scripted: 8 GiB wanted"),
        (0, "open", "hang", "timeout", "trajectory: open took longer than its deadline of "),
    ],
)
def test_a_contender_that_fails_leaves_its_partner_s_figures(
    stage: Stage, process: int | None, at: str, fault: str, status: str, reason: str
) -> None:
    script = {"other": {"fault": fault, "at": at, "visit": 0, "process": process}}
    result = stage.agree(script=script, deadline=plans.deadline(fault))
    good, bad = result["contenders"]
    assert (good["status"], good["reason"], bad["status"]) == ("ok", None, status)
    assert bad["reason"].startswith(reason)
    assert good["training"]["test_accuracy"] > 0.5
    assert len(result["agreement"]["trajectory"]["fake"]["loss"]) == STEPS
    assert len(result["agreement"]["accuracies"]["fake"]) == 2
    assert ("other" in result["agreement"]["accuracies"]) == (at == "inspect")  # trained before
    assert exit_code(result) == 3


@pytest.mark.parametrize(("fault", "at"), [("oom", "logits"), ("disk-full", "inspect")])
def test_what_runs_out_beside_the_partner_alone_costs_no_certificate(stage: Stage, fault: str, at: str) -> None:
    result = stage.agree(script={"other": {"fault": fault, "at": at, "visit": 0, "process": 0}})
    assert [(each["status"], each["reason"]) for each in result["contenders"]] == [("ok", None)] * 2
    assert [call[1] for call in stage.calls(at) if call[0] == "other"][:2] == ["0", "1"]
    assert [each["name"] for each in result["agreement"]["gates"]] == GATES
    assert exit_code(result) == 0


# Faults of samestep itself, found by these tests: each mark goes with its fault.
def test_a_gradient_that_is_zero_in_the_baseline_alone_is_named(stage: Stage) -> None:
    result = stage.agree(script={"fake": {"fault": "zero-gradient"}})
    assert result["agreement"]["first_mismatch"].startswith("batch 64: step1/gradient/dense.kernel")
    assert exit_code(result) == 1


def test_of_three_contenders_one_that_fails_in_training_leaves_the_others_certificate(stage: Stage) -> None:
    script = {"third": {"fault": "exit", "at": "logits", "visit": 0, "process": 0}}
    result = stage.agree("fake", "other", "third", script=script)
    assert [each["name"] for each in result["agreement"]["pairs"][0]["gates"]] == GATES
    assert exit_code(result) == 3


def test_children_that_share_the_jobs_find_what_one_finds(stage: Stage) -> None:
    alone, shared = stage.agree(), stage.agree(children=3)
    assert {call[1] for call in stage.calls("inspect") if call[0] == "fake"} >= {"1", "2", "3"}
    for key in ("pairs", "gates", "accuracies", "trajectory"):
        assert shared["agreement"][key] == alone["agreement"][key]


def test_twins_of_seeds_wait_for_the_first_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), timed=False)
    launcher, state = Launcher(plan, tmp_path), RunState(plan, [ContenderRun(each) for each in plan.contenders])
    accuracies = {"fake": {0: 0.5, 1: 0.5}, "other": {0: 0.9, 1: 0.1}}
    runs = TrainingRuns(range(2), {"fake": {}, "other": {}}, accuracies)

    def count_jobs() -> dict[str, int]:
        return {name: len(added) for name, added in trajectories.make_twin_jobs(launcher, state, runs).items()}

    assert count_jobs() == {}
    runs.first_twins["fake"], runs.losses["fake"][1] = 0.4, [1.0]
    assert count_jobs() == {"fake": 1}
    runs.losses["fake"][2] = [1.0]
    assert count_jobs() == {}  # each comes once


@pytest.mark.parametrize("children", [1, 3])
def test_accuracies_that_are_not_equivalent_are_held_against_one_ulp_twins(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, children: int
) -> None:
    assert stage.agree(children=children)["agreement"]["twin_accuracies"] == {}
    before = len(stage.calls("feed"))
    monkeypatch.setattr(trajectory, "ACCURACY", replace(trajectory.ACCURACY, limit=-1.0))
    result = stage.agree("fake", "other", children=children)
    more = len(stage.calls("feed")) - 2 * before
    assert more == 2  # the baseline opens the second seed, and trains its twin, which is enough
    assert {name: len(each) for name, each in result["agreement"]["twin_accuracies"].items()} == {"fake": 2}
    assert gate(result, "accuracy")["worst_tensor"] == "test accuracy, 2 seeds, by one-ulp twins"
    assert gate(result, "accuracy")["passed"]


def test_what_a_few_twins_do_not_show_is_held_against_all(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    few = stage.agree()["agreement"]["trajectory"]
    before = len(stage.calls("feed"))
    unequal = trajectory.ACCURACY.judge(1.0, "test accuracy")
    monkeypatch.setattr(trajectory, "judge_accuracies", lambda *_: unequal)
    monkeypatch.setattr(trajectory, "TRAJECTORY", replace(trajectory.TRAJECTORY, limit=-1.0))
    result = stage.agree("fake", "other")
    more = len(stage.calls("feed")) - 2 * before
    assert more == 2 * (1 + 3 + 2)  # each side opens, trains three more twins, and the twin of the second seed
    assert [gate(result, name)["passed"] for name in ("trajectory", "accuracy")] == [False, False]
    assert {name: len(each) for name, each in result["agreement"]["twin_accuracies"].items()} == {"fake": 2, "other": 2}
    for name, curve in result["agreement"]["trajectory"].items():
        assert all(wide >= narrow for wide, narrow in zip(curve["envelope"], few[name]["envelope"], strict=True))


def test_a_case_that_fails_by_a_few_perturbed_runs_is_judged_by_all(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.agree()
    before = len(stage.calls("inspect"))
    judge, seen = certificate.judge, list[tuple[int, Noise]]()

    def doubt_once(baseline: Any, contender: Any, precision: str, noise: Noise, *, normalised: bool) -> Certificate:
        seen.append((len(baseline["float64"]["step1/activation/dense"]), noise))
        found = judge(baseline, contender, precision, noise, normalised=normalised)
        first, *others = found.gates
        return found if len(seen) > 1 else replace(found, gates=(replace(first, passed=False), *others))

    monkeypatch.setattr(certificate, "judge", doubt_once)
    result = stage.agree("fake", "other")
    more = len(stage.calls("inspect")) - 2 * before
    assert more == 3 * (1 + 13) + 1  # the unmoved run, the 13 of 15 runs that are missing, and the repeated step
    assert (len(seen), exit_code(result)) == (len(CASES) + 1, 0)
    few, every = (noise for batch, noise in seen if batch == seen[0][0])
    assert all(every.ulp[name] >= value for name, value in few.ulp.items())
    assert any(every.ulp[name] > value for name, value in few.ulp.items())


def test_a_contender_that_leaves_steps_out_fails_the_trajectory(stage: Stage) -> None:
    result = stage.agree(script={"other": {"fault": "skip"}})
    assert not gate(result, "trajectory")["passed"]
    assert exit_code(result) == 1


@pytest.mark.parametrize("name", ["fake", "other"])
def test_an_agreement_without_its_trajectory_is_neither_passed_nor_failed(stage: Stage, name: str) -> None:
    result = stage.agree(script={name: {"fault": "exit", "at": "open", "visit": 0, "process": 0}})
    assert result["agreement"]["status"] == "skipped"
    assert result["agreement"]["first_mismatch"] is None
    assert exit_code(result) == 3


def test_a_recorded_scalar_stays_one_so_that_its_shape_is_compared(tmp_path: Path) -> None:
    tensors.save({"step1/loss": np.asarray(0.5)}, tmp_path / "step1")
    assert tensors.load(tmp_path / "step1")["step1/loss"].shape == ()
