"""Captured steps of torch: changes from step to step happen in device memory, because a graph runs no Python."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compare.agreement import gates
from compare.base import workloads
from compare.base.interface import Session
from compare.base.workloads import OptimizerSpec, Schedule
from compare.data import dataset_file, synthetic, weights
from compare.data.datasets import Dataset
from tests.parity import recorded_graph, twins
from torchbackend.only.captured_steps import CapturedSteps
from torchbackend.only.memory_order import stack_batches

SCHEDULE = Schedule("cosine", warmup=3, total=9)
RULES = {
    "nesterov": OptimizerSpec("sgd", 0.1, momentum=0.9, nesterov=True),
    "nesterov, scheduled": OptimizerSpec("sgd", 0.1, momentum=0.9, nesterov=True, schedule=SCHEDULE),
    "clipped, scheduled": OptimizerSpec("sgd", 0.1, momentum=0.9, clip_norm=0.5, schedule=SCHEDULE),
    "adamw, two groups": OptimizerSpec(
        "adam", 0.01, weight_decay=0.1, decoupled=True, decay_kernels_only=True, schedule=SCHEDULE
    ),
    "adam, steps": OptimizerSpec("adam", 0.01, schedule=Schedule("step", milestones=(2, 5), factor=0.3)),
}
DISPATCH, STEPS = 3, 11  # three dispatches and two single steps


def opened(patch: pytest.MonkeyPatch, rule: OptimizerSpec, *, knobs: dict[str, Any], accumulate: int = 1) -> Session:
    twins.narrow(patch)
    real = workloads.get("cifar-cnn")
    patch.setattr(workloads, "WORKLOADS", {"cifar-cnn": replace(real, optimizer=rule)})
    spec = twins.spec("torch", "cifar-cnn", accumulate=accumulate)
    session = twins.BACKENDS["torch"].open(replace(spec, knobs={**spec.knobs, **knobs}))
    session.assign(weights.randomise(session.signature(), 3))
    return session


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_captured_steps_are_those_that_python_takes(
    rule: OptimizerSpec, accumulate: int, monkeypatch: pytest.MonkeyPatch
):
    pool = twins.batches("cifar-cnn", 4)
    plain = opened(monkeypatch, rule, knobs={"fused-optimizer": True}, accumulate=accumulate)
    wanted = twins.trained(plain, pool, STEPS).export()
    recorded_graph.pretend(monkeypatch)
    knobs = {"graph-capture": True, "fused-optimizer": True, "steps-per-dispatch": DISPATCH}
    captured = opened(monkeypatch, rule, knobs=knobs, accumulate=accumulate)
    for _ in range(2):
        captured.assign(weights.randomise(captured.signature(), 3))
        found = twins.trained(captured, pool, STEPS).export()
        np.testing.assert_allclose(captured.losses(), plain.losses(), rtol=1e-13)
        for kind in ("parameters", "buffers", "optimizer"):
            for name, array in getattr(wanted, kind).items():
                np.testing.assert_allclose(getattr(found, kind)[name], array, rtol=0, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("count", [4, 3], ids=["in place", "copied"])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_a_captured_step_gets_batches_in_the_memory_order_of_its_model(
    last: bool, count: int, monkeypatch: pytest.MonkeyPatch
):
    recorded_graph.pretend(monkeypatch)
    steps = list[tuple[torch.Tensor, torch.Tensor]]()

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        steps.append((images.clone(), labels.clone()))
        return labels.sum()

    order = torch.channels_last if last else torch.contiguous_format
    pool = [torch.full((2, 3, 5, 7), float(index)).contiguous(memory_format=order) for index in range(4)]
    labels = torch.arange(4).repeat_interleave(2).reshape(4, 2)
    CapturedSteps(step, lambda: lambda: None, stack_batches(pool), labels, count)
    assert all(images.is_contiguous(memory_format=order) for images, _ in steps)
    assert all((images == given[0]).all() for images, given in steps)


def test_a_graph_that_trains_nothing_has_taken_no_steps(monkeypatch: pytest.MonkeyPatch):
    recorded_graph.pretend(monkeypatch)
    knobs = {"graph-capture": True, "fused-optimizer": True, "steps-per-dispatch": DISPATCH}
    captured, pool = opened(monkeypatch, RULES["nesterov"], knobs=knobs), twins.batches("cifar-cnn", 4)
    assert twins.trained(captured, pool, STEPS).export().step == STEPS
    monkeypatch.setattr(recorded_graph.Graph, "replay", lambda graph: None)
    captured.run(2 * DISPATCH)
    assert captured.export().step == STEPS


@pytest.mark.parametrize("in_place", [True, False])
def test_a_certificate_judges_the_graph_that_reads_batches_as_the_timed_one(
    in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    twins.narrow(monkeypatch)
    recorded_graph.pretend(monkeypatch)
    train, test = synthetic.make((7, 7, 3), classes=10, seed=1, train=40, test=8)
    dataset_file.save(Dataset(train, test, ""), tmp_path / "data.safetensors")
    spec = twins.spec("torch", "cifar-cnn", data=str(tmp_path / "data.safetensors"))
    knobs = {"graph-capture": True, "fused-optimizer": True, "steps-per-dispatch": 24}
    spec, one = replace(spec, knobs={**spec.knobs, **knobs}), CapturedSteps._train

    def on_the_first(several: Any, step: Any, index: int) -> Any:
        if several._reads_in_place != in_place:
            return one(several, step, index)
        return step(several.images[0], several.labels[0])

    right = twins.recorded(twins.BACKENDS["torch"], spec, DISPATCH, evenly=in_place)
    monkeypatch.setattr(CapturedSteps, "_train", on_the_first)
    errors = gates.measure_errors(right, twins.recorded(twins.BACKENDS["torch"], spec, DISPATCH, evenly=in_place))
    assert {name for name, error in errors.items() if error > 1e-6} == {name for name in errors if "delta/" in name}


@pytest.mark.parametrize(("epoch", "count"), [(1, 1), (1, 8), (2, 1), (2, 2), (2, 8), (3, 2), (3, 8), (4, 8), (5, 24)])
@pytest.mark.parametrize("other", [False, True], ids=["its batch", "a smaller one"])
def test_a_certificate_reads_batches_as_the_timed_dispatches_do(
    other: bool, epoch: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    twins.narrow(monkeypatch)
    recorded_graph.pretend(monkeypatch)
    spec = twins.spec("torch", "cifar-cnn", data=str(tmp_path / "data.safetensors"))
    train, test = synthetic.make((7, 7, 3), classes=10, seed=1, train=(9 if other else epoch) * spec.batch_size, test=8)
    dataset_file.save(Dataset(train, test, ""), tmp_path / "data.safetensors")
    knobs = {"graph-capture": True, "fused-optimizer": True, "steps-per-dispatch": count}
    spec, read, one = replace(spec, knobs={**spec.knobs, **knobs}), set[bool](), CapturedSteps._train

    def noted(several: Any, step: Any, index: int) -> Any:
        read.add(several._reads_in_place)
        return one(several, step, index)

    monkeypatch.setattr(CapturedSteps, "_train", noted)
    twins.recorded(twins.BACKENDS["torch"], spec, DISPATCH, evenly=count % epoch == 0)
    assert read == {count % epoch == 0}


def test_inspecting_counts_as_a_step_of_the_schedule(monkeypatch: pytest.MonkeyPatch):
    rule, pool = RULES["nesterov, scheduled"], twins.batches("cifar-cnn", 4)
    wanted = twins.trained(opened(monkeypatch, rule, knobs={}), pool, 1 + DISPATCH).export().parameters
    recorded_graph.pretend(monkeypatch)
    knobs = {"graph-capture": True, "fused-optimizer": True, "steps-per-dispatch": DISPATCH}
    captured = opened(monkeypatch, rule, knobs=knobs)
    captured.inspect(pool[0])
    found = twins.trained(captured, [*pool[1:], pool[0]], DISPATCH).export().parameters
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-13, err_msg=name)
