"""Steps at the timed batch: at which rate, how many, from which weights, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import plan, tensors
from compare.agreement.certificate import Certificate
from compare.certificates import updates
from compare.data import store
from compare.outcomes import Outcome, Outcomes
from compare.processes.launcher import Launcher
from compare.tuning import contenders


class Child:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def call(self, command: str, deadline: float, **arguments: Any) -> None:
        self.calls.append((command, json.loads(json.dumps(arguments))))


def taken(folder: Path, text: str, count: int = 3, **changes: Any) -> tuple[list[tuple[str, dict[str, Any]]], Outcome]:
    made = plan.make([text, "torch"], out=folder, batch_size=16, device="cpu", **changes)
    launcher, outcome, child = Launcher(made, folder), Outcome(made.contenders[0]), Child()
    store.save(made.dataset, launcher.dataset)
    updates.take(launcher, outcome, child, count)  # pyright: ignore[reportArgumentType] -- no process is needed here
    return child.calls, outcome


@pytest.mark.parametrize(("workload", "part"), [("cifar-cnn", 1 / 4096), ("digits-cnn", 1.0)])
def test_steps_are_those_that_are_timed_at_a_slower_rate_of_sgd(tmp_path: Path, workload: str, part: float) -> None:
    text = "jax:compiled+steps-per-dispatch=4"
    ((command, opened), own, moved), outcome = taken(tmp_path, text, 4, workload=workload)
    spec = opened["spec"]
    rate = plan.make(["jax", "torch"], out=tmp_path, workload=workload).workload.optimizer.learning_rate
    assert command == "open"
    assert spec["described"]["optimizer"]["learning_rate"] == pytest.approx(part * rate)
    assert (spec["batch_size"], spec["knobs"]["steps-per-dispatch"], spec["loss_scale"]) == (16, 4, 2.0**16)
    folder = tmp_path / "update-jax:compiled+steps-per-dispatch=4"
    assert outcome.update == folder
    assert own == ("update", {"steps": 4, "path": str(folder / "own"), "roundoff": 2.0**-23, "generation": 0})
    assert moved == ("update", {"steps": 4, "path": str(folder / "moved"), "roundoff": 2.0**-23, "generation": 1})


def test_steps_in_float16_begin_with_a_loss_scale_that_does_not_overflow(tmp_path: Path) -> None:
    calls, _ = taken(tmp_path, "jax", precision="float16")
    assert calls[0][1]["spec"]["loss_scale"] == 2.0**11
    assert calls[2][1]["roundoff"] == 2.0**-10


@pytest.mark.parametrize(
    ("texts", "count"), [(("torch", "jax"), 3), (("torch", "jax:compiled+steps-per-dispatch=8"), 8)]
)
def test_steps_are_as_many_as_every_contender_dispatches(tmp_path: Path, texts: tuple[str, ...], count: int) -> None:
    made = plan.make(texts, out=tmp_path, device="cpu")
    assert updates.steps(Launcher(made, tmp_path), [Outcome(each) for each in made.contenders]) == count


@pytest.mark.parametrize(
    ("own", "moved", "mismatch"),
    [
        (1.0, 1.0, None),
        (-1.0, -1.0, "the update at the batch that is timed is another: "),
        (1.0, -1.0, None),  # the baseline knows it
    ],
)
def test_the_gate_joins_the_certificate(tmp_path: Path, own: float, moved: float, mismatch: str | None) -> None:
    made = judged(tmp_path, (1.0, 1.0), (own, moved))
    assert made.passed is (mismatch is None)
    assert (made.first_mismatch or "").startswith(mismatch or "")


def test_what_is_only_rounding_is_said(tmp_path: Path) -> None:
    made = judged(tmp_path, (1.0, -1.0), (1.0, -1.0))
    assert made.first_mismatch == "the update at the batch that is timed is nothing but rounding in every parameter"
    assert not made.passed


def judged(folder: Path, *sides: tuple[float, float]) -> Certificate:
    """Return the certificate of two contenders, each with its change and that from moved weights."""
    outcomes = Outcomes([Outcome(contender) for contender in contenders.parse(["torch", "jax"])])
    for outcome, changes in zip(outcomes.contenders, sides, strict=True):
        outcome.update = folder / outcome.contender.name
        for name, change in zip(("own", "moved"), changes, strict=True):
            tensors.save({"kernel": np.full(9, change)}, outcome.update / name)
    outcomes.certificates["jax"] = Certificate((), None)
    updates.judge(outcomes)
    return outcomes.certificates["jax"]
