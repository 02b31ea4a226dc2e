"""Steps at the timed batch: at which rate, how many, from which weights, and what is said of them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import plan, tensors, workloads
from compare.agreement.certificate import Certificate
from compare.agreement.gates import Updates
from compare.certificates import updates
from compare.data import store
from compare.outcomes import Outcome, Outcomes
from compare.processes.launcher import Launcher
from compare.tuning import contenders
from compare.workloads import Schedule, Workload


class Child:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def call(self, command: str, deadline: float, **arguments: Any) -> Any:
        self.calls.append((command, json.loads(json.dumps(arguments))))
        if command == "update":
            tensors.save({"kernel": np.ones(2), "bias": np.zeros(2)}, Path(arguments["path"]))
            return {"kernel": 1.5, "bias": None}
        return None


def taken(folder: Path, text: str, count: int = 3, **changes: Any) -> tuple[list[tuple[str, dict[str, Any]]], Outcome]:
    made = plan.make([text, "torch"], out=folder, batch_size=16, device="cpu", **changes)
    launcher, outcome, child = Launcher(made, folder), Outcome(made.contenders[0]), Child()
    store.save(made.dataset, launcher.dataset)
    updates.take(launcher, outcome, child, count)  # pyright: ignore[reportArgumentType] -- no process is needed here
    return child.calls, outcome


CIFAR = workloads.get("cifar-cnn")
WARMED = replace(CIFAR, optimizer=replace(CIFAR.optimizer, schedule=Schedule("cosine", warmup=20, total=100)))


@pytest.mark.parametrize(
    ("workload", "part"), [(CIFAR, 1 / 4096), (WARMED, 20 / 4096), (workloads.get("digits-cnn"), 1.0)]
)
def test_steps_are_those_that_are_timed_at_a_slower_rate_of_sgd(
    tmp_path: Path, workload: Workload, part: float
) -> None:
    text = "jax:compiled+steps-per-dispatch=4"
    ((command, opened), update), outcome = taken(tmp_path, text, 4, workload=workload)
    spec = opened["spec"]
    assert command == "open"
    assert spec["described"]["optimizer"]["learning_rate"] == pytest.approx(part * workload.optimizer.learning_rate)
    assert (spec["batch_size"], spec["knobs"]["steps-per-dispatch"], spec["loss_scale"]) == (16, 4, 2.0**16)
    path = tmp_path / "update-jax:compiled+steps-per-dispatch=4.safetensors"
    assert update == ("update", {"steps": 4, "path": str(path), "roundoff": 2.0**-23, "runs": 4})
    assert outcome.update is not None
    assert list(outcome.update.changes["kernel"]) == [1, 1]
    assert outcome.update.noise == {"kernel": 1.5, "bias": math.inf}


def test_steps_in_float16_begin_with_a_loss_scale_that_does_not_overflow(tmp_path: Path) -> None:
    calls, _ = taken(tmp_path, "jax", precision="float16")
    assert calls[0][1]["spec"]["loss_scale"] == 2.0**11
    assert calls[1][1]["roundoff"] == 2.0**-10


@pytest.mark.parametrize(
    ("texts", "count"), [(("torch", "jax"), 3), (("torch", "jax:compiled+steps-per-dispatch=8"), 8)]
)
def test_steps_are_as_many_as_every_contender_dispatches(tmp_path: Path, texts: tuple[str, ...], count: int) -> None:
    made = plan.make(texts, out=tmp_path, device="cpu")
    assert updates.steps(Launcher(made, tmp_path), [Outcome(each) for each in made.contenders]) == count


@pytest.mark.parametrize(
    ("change", "noise", "mismatch"),
    [
        (1.0, 1.0, None),
        (-1.0, 1.0, "the update at the batch that is timed is another: kernel"),
        (1.0, 9.0, "the update at the batch that is timed is nothing but rounding in every parameter"),
    ],
)
def test_the_gate_joins_the_certificate(change: float, noise: float, mismatch: str | None) -> None:
    outcomes = Outcomes([Outcome(contender) for contender in contenders.parse(["torch", "jax"])])
    for outcome, value in zip(outcomes.contenders, (1.0, change), strict=True):
        outcome.update = Updates({"kernel": np.full(9, value)}, {"kernel": noise})
    outcomes.certificates["jax"] = Certificate((), None)
    updates.judge(outcomes)
    made = outcomes.certificates["jax"]
    assert (made.passed, made.first_mismatch) == (mismatch is None, mismatch)
