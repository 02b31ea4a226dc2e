"""What a worker says of the work that it has done, with a fake backend and scripted time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare.base import workloads
from compare.base.interface import RunSpec, State
from compare.data import dataset_file, datasets
from compare.worker import training
from compare.worker.worker import Worker
from tests.fakebackend.script import Silent
from tests.fakebackend.session import FakeBackend, FakeSession


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    path = tmp_path / "data.safetensors"
    dataset_file.save(datasets.load(workloads.get("digits-cnn"), folder=None, seed=0, batch_size=64), path)
    return RunSpec("digits-cnn", "float64", "cpu", 64, 0, {"steps-per-dispatch": 7}, 1, str(path))


def opened(spec: RunSpec, **behaviour: Any) -> Worker:
    script = Silent("fake", json.dumps({"folder": "", "fake": {"step_seconds": 1e-3, **behaviour}}))
    worker = Worker(FakeBackend(script), script.clock)
    worker.open(spec)
    return worker


def test_what_a_first_dispatch_took_longer_than_its_steps_take_is_compilation(spec: RunSpec) -> None:
    found = opened(spec, compile_seconds=8.0).warm_up(0.02, None)
    assert found.compile_seconds == pytest.approx(8, abs=1e-6)
    assert found.first_step_seconds == pytest.approx(8.007)


@pytest.mark.parametrize(("steps", "settles"), [(None, True), (400, True), (None, False)])
def test_compilation_is_told_apart_from_steps_in_blocks_of_every_length(
    spec: RunSpec, steps: int | None, settles: bool
) -> None:
    single = replace(spec, knobs={"steps-per-dispatch": 1})
    found = opened(single, compile_seconds=8.0, step_seconds=0.01).warm_up(0.1, steps, settles)
    assert found.compile_seconds == pytest.approx(8, abs=1e-6)


def test_steps_of_a_spin_are_all_that_were_taken(spec: RunSpec) -> None:
    assert opened(spec, step_seconds=0.01).spin(0.2, 14) == 28


def test_a_loss_that_is_not_finite_has_its_step_though_the_first_losses_are_not_kept(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = opened(spec)
    monkeypatch.setattr(FakeSession, "losses", lambda _: np.array([1.0, np.nan, 1.0]))
    assert worker.proof(14).not_finite == 27  # of 28 steps the last three are kept
    monkeypatch.setattr(FakeSession, "losses", lambda _: np.ones(3))
    assert worker.proof(14).not_finite is None


def test_buffers_are_no_parameters(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    dense, norm = FakeSession.signature, {f"norm.{name}": (5,) for name in ("scale", "bias", "mean", "var")}
    monkeypatch.setattr(FakeSession, "signature", lambda session: dense(session) | norm)
    assert opened(spec).open(spec).parameter_count == 64 * 10 + 10 + 2 * 5


def test_what_is_not_finite_is_recorded_once_where_no_loss_is_scaled(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales, begin = list[float](), FakeBackend.open

    def begun(backend: FakeBackend, told: RunSpec) -> FakeSession:
        scales.append(told.loss_scale)
        return begin(backend, told)

    worker = opened(spec, fault="nan-gradient")
    monkeypatch.setattr(FakeBackend, "open", begun)
    worker.record(spec, 3, str(tmp_path / "record"))
    assert scales == [spec.loss_scale]


def test_a_contender_that_begins_anew_takes_as_many_steps_from_the_same_weights(spec: RunSpec) -> None:
    worker = opened(spec)
    worker.warm_up(0.02, None)
    restarted = worker.restart()
    before, after = restarted.before, restarted.after
    assert before == after
    assert (before.steps, len(before.losses)) == (14, 3)  # a dispatch of 7, and as many as have three losses
    assert before.moved.keys() == {"dense.kernel"}  # the bias begins as zeros
    assert 0 < (before.moved["dense.kernel"] or 0) < 1
    assert worker.proof(14).dispatched == 14 + 28  # counted from where it began


@pytest.mark.parametrize(("fault", "same"), [("frozen", "losses"), ("aged", None)])
def test_what_has_changed_meanwhile_is_there_to_be_seen(spec: RunSpec, fault: str, same: str | None) -> None:
    worker = opened(spec, fault=fault)
    worker.warm_up(0.2, None)
    restarted = worker.restart()
    before, after = restarted.before, restarted.after
    assert (before.moved["dense.kernel"] or 0) > 0
    assert (after.moved["dense.kernel"] == 0) is (fault == "frozen")
    assert (before.losses[0] == after.losses[0]) is (same == "losses")


def test_parameters_of_few_elements_and_what_begins_as_zeros_are_not_asked(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = opened(spec)
    start = {"kernel": np.full(8, 2.0), "few": np.full(7, 2.0), "zeros": np.zeros(8), "bad": np.full(9, 1.0)}
    end = {name: array * 1.5 + 1 for name, array in start.items()} | {"bad": np.full(9, np.nan)}
    monkeypatch.setattr(FakeSession, "export", lambda _: State(end, {}, {}, 0))
    assert training.measure_movement(worker._open_session, start) == {"kernel": 1.0, "bad": None}


@pytest.mark.parametrize("task", ["train", "infer"])
def test_requests_have_no_biases_of_zeros_which_a_compiler_would_drop(spec: RunSpec, task: str) -> None:
    initial = training.make_initial_weights(opened(spec)._open_session, replace(spec, task=task))
    assert initial["dense.bias"].any() == (task == "infer")


@pytest.mark.parametrize(("device", "made"), [("cuda", 0), ("cpu", 4)])
def test_initial_weights_are_made_once_where_they_do_not_count_as_used_memory(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch, device: str, made: int
) -> None:
    calls, initial = list[int](), training.make_initial_weights

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return initial(*arguments)

    worker = opened(spec)
    monkeypatch.setattr(training, "make_initial_weights", counted)
    first = worker.open(replace(spec, device=device))
    calls.clear()
    worker._begin()
    worker.warm_up(0.02, None)
    worker.restart()
    assert len(calls) == made
    assert worker.open(replace(spec, device=device, seed=spec.seed + 1)).weights_sha256 != first.weights_sha256
