"""Steps at the timed batch: at which rate, how many, from which weights, and what is said of them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.certificate import Certificate
from compare.agreement.measures import Updates
from compare.base import strict_json, tensors, workloads
from compare.base.commands import Update
from compare.base.workloads import Schedule, Workload
from compare.data import dataset_file
from compare.execution import updates
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.settings import contenders, plan
from compare.settings.options import Settings
from compare.settings.plan import Plan


def collect_commands(
    folder: Path, text: str, count: int = 3, **changes: Any
) -> tuple[list[tuple[str, dict[str, Any]]], ContenderRun]:
    made = plan.make(Settings(contenders=[text, "torch"], out=folder, batch_size=16, device="cpu", **changes))
    launcher, outcome = Launcher(made, folder), ContenderRun(made.contenders[0])
    dataset_file.save(made.dataset, launcher.dataset)
    calls = updates.make_calls(launcher, outcome, count)
    for call in calls:
        if isinstance(call.command, Update):
            tensors.save({"kernel": np.ones(2), "bias": np.zeros(2)}, Path(call.command.path))
            call.keep({"kernel": 1.5, "bias": None})
    return [(call.command.name, json.loads(json.dumps(strict_json.encode(call.command)))) for call in calls], outcome


CIFAR = workloads.get("cifar-cnn")
WARMED = replace(CIFAR, optimizer=replace(CIFAR.optimizer, schedule=Schedule("cosine", warmup=20, total=100)))
DIGITS = workloads.get("digits-cnn")


def rated(workload: Workload, rate: float) -> Workload:
    return replace(workload, optimizer=replace(workload.optimizer, learning_rate=rate))


@pytest.mark.parametrize(
    ("workload", "rate"),
    [
        (CIFAR, 2**-16),
        (rated(CIFAR, 1e-7), 2**-16),
        (WARMED, 20 * 2**-16),
        (DIGITS, DIGITS.optimizer.learning_rate),
        (rated(DIGITS, 1e-7), 2**-16),
    ],
)
def test_steps_are_those_that_are_timed_at_a_small_rate_of_sgd_and_at_none_too_small(
    tmp_path: Path, workload: Workload, rate: float
) -> None:
    text = "jax:compiled+steps-per-dispatch=4"
    ((command, opened), update), outcome = collect_commands(tmp_path, text, 4, workload=workload)
    spec = opened["spec"]
    assert command == "open"
    assert spec["described"]["optimizer"]["learning_rate"] == pytest.approx(rate)
    assert (spec["batch_size"], spec["knobs"]["steps-per-dispatch"], spec["loss_scale"]) == (16, 4, 2.0**16)
    path = tmp_path / "update-jax:compiled+steps-per-dispatch=4.safetensors"
    assert update == ("update", {"steps": 4, "path": str(path), "roundoff": 2.0**-23, "runs": 4})
    assert outcome.update is not None
    assert list(outcome.update.changes["kernel"]) == [1, 1]
    assert outcome.update.noise == {"kernel": 1.5, "bias": math.inf}


def test_steps_in_float16_begin_with_a_loss_scale_that_does_not_overflow(tmp_path: Path) -> None:
    calls, _ = collect_commands(tmp_path, "jax", precision="float16")
    assert calls[0][1]["spec"]["loss_scale"] == 2.0**11
    assert calls[1][1]["roundoff"] == 2.0**-10


@pytest.mark.parametrize(
    ("texts", "count"), [(("torch", "jax"), 3), (("torch", "jax:compiled+steps-per-dispatch=8"), 8)]
)
def test_steps_are_as_many_as_every_contender_dispatches(tmp_path: Path, texts: tuple[str, ...], count: int) -> None:
    made = plan.make(Settings(contenders=texts, out=tmp_path, device="cpu"))
    assert updates.count_steps(Launcher(made, tmp_path), [ContenderRun(each) for each in made.contenders]) == count


def judged(baseline: Updates, contender: Updates) -> Certificate:
    made = cast(Plan, SimpleNamespace())
    outcomes = RunState(made, [ContenderRun(contender) for contender in contenders.parse(["torch", "jax"])])
    for outcome, found in zip(outcomes.runs, (baseline, contender), strict=True):
        outcome.update = found
    outcomes.certificates["jax"] = Certificate((), None)
    updates.judge(outcomes)
    return outcomes.certificates["jax"]


def moved(value: float, noise: float = 1.0, **more: float) -> Updates:
    names = {"kernel": noise, **more}
    return Updates({name: np.full(9, value) for name in names}, names)


@pytest.mark.parametrize(
    ("baseline", "contender", "mismatch"),
    [
        (moved(1.0), moved(1.0), None),
        (moved(1.0), moved(-1.0), "is another: kernel"),
        (moved(1.0), moved(1.0, bias=1.0), "is another: bias"),
        (moved(1.0, bias=1.0), moved(1.0), "is another: bias"),
        (moved(1.0), Updates({"kernel": np.ones(4)}, {"kernel": 1.0}), "is another: kernel"),
        (moved(1.0, 9.0), moved(1.0, 9.0), "is nothing but rounding in every parameter"),
        (moved(0.0, math.inf), moved(0.0, math.inf), "is none: the baseline's steps change no parameter"),
        (moved(1.0, 9.0), moved(0.0, math.inf), "is none: the contender's steps change no parameter"),
        (moved(math.nan, math.inf), moved(1.0, 9.0), "is not finite in any of the baseline's parameters"),
    ],
)
def test_the_gate_joins_the_certificate(baseline: Updates, contender: Updates, mismatch: str | None) -> None:
    made = judged(baseline, contender)
    said = mismatch and f"the update at the batch that is timed {mismatch}"
    assert (made.passed, made.first_mismatch) == (mismatch is None, said)


def test_a_note_says_of_how_many_parameters_is_asked_where_it_is_not_all() -> None:
    assert judged(moved(1.0), moved(1.0)).notes == ()
    one = moved(1.0, bias=9.0, scale=math.inf)
    assert judged(one, one).notes == ("update: asked of 1 of 3 tensors",)


@pytest.mark.parametrize("allowed", [(), (RUNNING_VARIANCE,)], ids=str)
def test_running_variances_are_not_compared_where_one_side_s_may_be_biased(allowed: tuple[str, ...]) -> None:
    names = ("kernel", "norm.mean", "norm.var", "net.var.scale")
    side = Updates({name: np.ones(3) for name in names}, dict.fromkeys(names, 1.0))
    pairing: Any = SimpleNamespace(allowed=allowed)
    left = [name for name in names if not (allowed and name == "norm.var")]
    found = updates._drop_allowed(side, pairing)
    assert (list(found.changes), list(found.noise)) == (left, left)
    assert updates._drop_allowed(side, None) is side
