"""The plan that a stored result gives: the same run, or a refusal that says why not."""

from pathlib import Path
from typing import Any

import pytest

from compare.base import early_stopping, workloads
from compare.base.interface import Refused
from compare.data import pruning
from compare.machine import environment
from compare.reproduce import repetition
from compare.results.model import from_json
from compare.settings import plan
from tests.fakebackend import plans
from tests.unit.result_factory import make_contender, make_result, typed


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.register(monkeypatch, tmp_path)


ADAM = {"name": "adam", "learning_rate": 0.001}


def stored(*names: str, **changes: Any) -> dict[str, Any]:
    spec = {"contenders": list(names), **changes.pop("spec", {})}
    contenders = [make_contender(name, tuning=_tuning(name)) for name in names]
    return make_result(spec=spec, contenders=contenders, comparisons=[], **changes)


def _tuning(name: str) -> str:
    return name.partition("#")[0].partition(":")[2] or "compiled"


def planned(result: dict[str, Any], tmp_path: Path, **options: Any) -> plan.Plan:
    return repetition.make_plan(from_json(result), {"out": tmp_path / "out", **options})


def test_everything_that_decides_a_run_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.settings.tunings.keeps_search", lambda *_: True)
    spec = {
        "batch_size": 32,
        "precision": "float64",
        "rounds": 7,
        "seed": 5,
        "epochs": 3,
        "margin": 0.02,
        "confidence": 0.99,
        "agreement_requested": False,
        "energy_requested": True,
        "cold_compile_requested": False,
        "search_anew_requested": True,
        "deterministic": True,
        "deadline_seconds": 12.5,
        "design": "turns",
        "design_reason": None,
    }
    names = ("fake", "other:steps-per-dispatch=7", "fake#2")
    made = planned(stored(*names, spec=spec), tmp_path)
    assert tuple(contender.name for contender in made.contenders) == names
    assert (made.workload.name, made.batch_size, made.precision, made.device) == ("digits-cnn", 32, "float64", "cpu")
    assert (made.rounds, made.seed, made.epochs) == (7, 5, 3)
    assert (made.margin, made.confidence, made.agreement, made.energy) == (0.02, 0.99, False, True)
    assert (made.cold_compile, made.search_anew) == (False, True)
    assert (made.deterministic, made.deadline, made.design) == (True, 12.5, "turns")
    assert made.deadline == 12.5


@pytest.mark.parametrize(("gpus", "rotation"), [(4, 4), (8, 4), (2, 1)])
def test_rounds_go_around_on_as_many_gpus_as_before_where_there_are_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, rotation: int
) -> None:
    monkeypatch.setattr(environment, "count_visible_gpus", lambda: gpus)
    assert planned(stored("fake", "other", spec={"rotation": 4}), tmp_path).rotation == rotation
    assert planned(stored("fake", "other"), tmp_path).rotation == 1


def test_rounds_that_could_not_alternate_are_planned_to_alternate_again(tmp_path: Path) -> None:
    spec = {"design": "turns", "design_reason": "from round 1 on: the contenders do not fit in memory together"}
    assert planned(stored("fake", "other", spec=spec), tmp_path).design == "alternating"


@pytest.mark.parametrize(("whole", "planned_now"), [(2, 2), (1, 6), (0, 6)])
def test_an_interrupted_run_is_planned_with_rounds(tmp_path: Path, whole: int, planned_now: int) -> None:
    result = stored("fake", "other", spec={"rounds": whole, "rounds_requested": 6})
    assert typed(result).spec.is_comparison
    assert planned(result, tmp_path).rounds == planned_now


def test_a_gate_may_stop_where_the_stored_one_could(tmp_path: Path) -> None:
    looks = {"3": 0.004, "5": 0.011, "10": 0.02, "20": 0.015}
    spec = {"rounds": 10, "rounds_requested": 20, "looks": looks, "fail_above": 0.05}
    made = planned(stored("fake", "other", spec=spec), tmp_path)
    assert (made.rounds, made.looks, made.fail_above) == (20, early_stopping.GATE_LOOKS, 0.05)
    fixed = planned(stored("fake", "other", spec={**spec, "looks": None}), tmp_path)
    assert (fixed.rounds, fixed.looks, fixed.fail_above) == (10, None, 0.05)


def test_rounds_and_deadline_may_be_others(tmp_path: Path) -> None:
    made = planned(stored("fake", "other"), tmp_path, rounds=3, deadline=9.0)
    assert (made.rounds, made.deadline) == (3, 9.0)
    with pytest.raises(Refused, match="--rounds 0 is not allowed"):
        planned(stored("fake", "other"), tmp_path, rounds=0)


def test_as_many_images_are_drawn_again(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--images 6: allowed with --data DIR of photographs"):  # here are digits
        planned(stored("fake", "other", spec={"images": 6}), tmp_path)


def test_a_certificate_has_no_rounds(tmp_path: Path) -> None:
    certificate = stored("fake", "other", spec={"rounds": 0, "rounds_requested": 0})
    assert not typed(certificate).spec.is_comparison
    assert planned(certificate, tmp_path).rounds == 0
    assert repetition.read_seeds(from_json(certificate)) == 5
    certificate["agreement"]["accuracies"] = {"fake": [0.9, 0.9], "other": [0.9, 0.9, 0.9]}
    assert repetition.read_seeds(from_json(certificate)) == 3
    certificate["agreement"]["accuracies"] = {"fake": [0.9]}
    with pytest.raises(Refused, match="--seeds 1 is not allowed"):
        repetition.read_seeds(from_json(certificate))
    with pytest.raises(Refused, match="--rounds 3: the result is of `samestep agree`"):
        planned(certificate, tmp_path, rounds=3)


@pytest.mark.parametrize(
    ("folder", "changes"),
    [("nowhere", {}), (None, {"data": "nowhere"})],
    ids=["stored", "changed"],
)
def test_a_data_folder_that_is_missing_is_named(folder: str | None, changes: Any, tmp_path: Path) -> None:
    result = stored("fake", "other", spec={"workload": "mnist-cnn", "image": [28, 28, 1], "data_folder": folder})
    with pytest.raises(Refused, match="--data nowhere: no such folder"):
        planned(result, tmp_path, **changes)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workload": "resnet"}, "of the result: unknown workload 'resnet'"),
        ({"device": "cuda"}, "measured on a GPU, and this machine has no NVIDIA GPU"),
        ({"precision": "tf32"}, "precision tf32 needs --device cuda"),
        ({"epochs": 0}, "--epochs 0 is not allowed"),
        ({"margin": 0}, "--margin 0 is not allowed"),
        ({"batch_size": 2**40}, "--batch-size 1099511627776 is not allowed"),
        ({"image": [9, 9, 1]}, "workload digits-cnn: image[0] was 9, here it is 8"),
        ({"optimizer": ADAM | {"learning_rate": 0.01}}, "optimizer.learning_rate was 0.01, here it is 0.001"),
        ({"optimizer": ADAM | {"weight_decay": 0.1}}, "optimizer.weight_decay was 0.1, here it is 0.0"),
        ({"optimizer": {"name": "adam"}}, "optimizer.learning_rate was 0.0, here it is 0.001"),
        ({"label_smoothing": 0.1}, "label_smoothing was 0.1, here it is 0.0"),
        ({"model": {"family": "simple", "features": 64}}, "model.features was 64, here it is 32"),
    ],
    ids=str,
)
def test_what_cannot_be_repeated_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: False)
    with pytest.raises(Refused) as refused:
        planned(stored("fake", "other", spec=change), tmp_path)
    assert said in str(refused.value)


def test_contenders_that_are_not_what_they_are_called_are_refused(tmp_path: Path) -> None:
    result = stored("fake", "other:stock")
    result["contenders"][1]["tuning"] = "compiled"
    with pytest.raises(Refused, match="contender other:stock is stored as other with tuning compiled"):
        planned(result, tmp_path)
    for names in (["fake"], ["other", "fake"], ["fake", "other", "third"]):
        result["spec"]["contenders"] = names
        with pytest.raises(Refused, match=r"spec\.contenders are"):
            planned(result, tmp_path)
    with pytest.raises(Refused, match="unknown contender 'elsewhere'"):
        planned(stored("fake", "elsewhere"), tmp_path)


def test_a_pruned_and_fine_tuned_run_is_planned_again(tmp_path: Path) -> None:
    model = pruning.prune(workloads.get("digits-cnn").model, 0.5, 8, "kernels")
    described = {"family": model.family, **model.arguments, "pruned": dict(model.pruned)}
    spec = {"prune": 0.5, "finetune_epochs": 2, "epochs": 3, "model": described}
    made = planned(stored("fake", "other", spec=spec), tmp_path)
    assert made.workload.model.arguments == {"features": 16}
    assert (made.epochs, made.finetune_epochs) == (3, 2)
