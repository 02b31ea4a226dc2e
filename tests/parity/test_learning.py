"""Whole training runs of narrow models on a CPU: both backends learn, and learn the same."""

import itertools
import math
import weakref
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import jaxbackend.session
import torchbackend.session
from compare.agreement import gates, trajectory
from compare.agreement.measures import Updates
from compare.agreement.trajectory import Curves
from compare.base import descriptions, tensors, workloads
from compare.base.commands import TrainingResult
from compare.base.interface import Backend, Batch, RunSpec
from compare.data import dataset_file, datasets
from compare.worker import training
from compare.worker.worker import Worker
from tests.parity import twins

EPOCHS, BATCH, SIZE, CLASSES = 5, 16, 17, 5


@pytest.mark.parametrize("name", ["vgg16", "mobilenet-v2", "unet"])
def test_both_backends_learn_the_same(name: str, monkeypatch: pytest.MonkeyPatch):
    real = workloads.get(name)
    narrow = replace(real, model=twins.narrowed(real.model, image=(SIZE, SIZE, 3), classes=CLASSES))
    monkeypatch.setattr(workloads, "WORKLOADS", {name: narrow})
    dataset = datasets.load(narrow, folder=None, seed=0, batch_size=BATCH)
    found = list[TrainingResult]()
    for backend in twins.BOTH:
        spec = replace(twins.spec(backend), workload=name, precision="float32", batch_size=BATCH, epochs=EPOCHS, seed=0)
        session = twins.BACKENDS[backend].open(spec)
        found.append(training.train(session, spec, dataset.train, dataset.test))
    ours, theirs = found
    np.testing.assert_allclose(np.array(ours.loss, float), np.array(theirs.loss, float), rtol=1e-3)
    assert ours.test_accuracy is not None
    assert theirs.test_accuracy is not None
    assert abs(ours.test_accuracy - theirs.test_accuracy) < 0.01
    for each in found:
        assert (each.loss[-1] or 0.0) < 0.92 * (each.loss[0] or 0.0)
        if name == "unet":  # an accuracy of pixels: the commonest class alone is no skill
            assert each.test_accuracy > (dataset.test.labels == 0).mean() + 0.05


@pytest.mark.parametrize("backend", twins.BOTH)
def test_every_step_of_a_long_epoch_has_its_loss(backend: str, monkeypatch: pytest.MonkeyPatch):
    dataset = datasets.load(workloads.get("digits-cnn"), folder=None, seed=0, batch_size=128)
    spec = replace(twins.spec(backend, batch_size=128, seed=0), image_size=None)
    whole = training.measure_losses(twins.BACKENDS[backend].open(spec), spec, dataset.train, 0.0, 0)
    assert len(whole) == 11
    for module in (training, jaxbackend.session, torchbackend.session):
        monkeypatch.setattr(module, "KEPT_LOSSES", 4)
    assert training.measure_losses(twins.BACKENDS[backend].open(spec), spec, dataset.train, 0.0, 0) == whole


@pytest.mark.parametrize(
    ("backend", "accumulate", "devices"),
    [
        *itertools.product(twins.BOTH, [1], [1, 2]),
        ("torch", 2, 1),
        pytest.param("jax", 2, 1, marks=pytest.mark.thorough),
    ],
)
def test_a_twin_is_the_same_run_in_another_order(
    backend: str, accumulate: int, devices: int, monkeypatch: pytest.MonkeyPatch
):
    size, parts = 16, accumulate * devices
    train = datasets.load(workloads.get("cifar-cnn"), folder=None, seed=0, batch_size=size, image_size=7).train
    train = replace(train, images=train.images[: 4 * size], labels=train.labels[: 4 * size])
    spec = twins.spec(backend, "cifar-cnn", batch_size=size, accumulate=accumulate, seed=0)
    session: Any = twins.BACKENDS[backend].open(spec)
    fed, feed = list[list[list[int]]](), session.feed

    def seen(batches: list[Batch]) -> None:
        fed.append([batch.labels.tolist() for batch in batches])
        feed(batches)

    monkeypatch.setattr(session, "feed", seen)
    told = replace(spec, devices=devices)  # the session trains on one of them
    own, twin, again, other = (training.measure_losses(session, told, train, 0.0, which) for which in (0, 1, 1, 2))
    np.testing.assert_allclose(np.array(own, np.float64), np.array(twin, np.float64), rtol=1e-12)
    np.testing.assert_allclose(np.array(own, np.float64), np.array(other, np.float64), rtol=1e-12)
    assert twin == again
    assert fed[1] == fed[2]
    assert len({str(each) for each in fed}) == 3
    for ordered, shuffled in zip(fed[0], fed[1], strict=True):
        every = [slice(start, start + size // parts) for start in range(0, size, size // parts)]
        assert [sorted(ordered[part]) for part in every] == [sorted(shuffled[part]) for part in every]


@pytest.mark.thorough  # compiles the whole of cifar-cnn
def test_what_a_program_rounds_worse_than_others_is_in_its_envelope():
    """TorchInductor adds up batch norm's statistics over all pixels in order."""
    train = datasets.load(workloads.get("cifar-cnn"), folder=None, seed=0, batch_size=32).train
    curves = list[Curves]()
    for backend, tuning in (("torch", "compiled"), ("jax", "stock")):
        spec = twins.spec(backend, "cifar-cnn", tuning, batch_size=32, seed=0, precision="float32", image_size=None)
        session = twins.BACKENDS[backend].open(spec)
        losses = [training.measure_losses(session, spec, train, 2.0**-23, twin) for twin in range(6)]
        curves.append(Curves.of(np.array(losses[0], np.float64), np.array(losses[1:], np.float64)))
    assert trajectory.judge_losses(*curves).passed


@pytest.mark.parametrize(("shrunk", "passed"), [(1.0, True), (0.4, False)])
def test_updates_at_a_batch_are_held_against_those_an_ulp_beside(shrunk: float, passed: bool, tmp_path: Path):
    path = tmp_path / "dataset"
    dataset_file.save(datasets.load(workloads.get("digits-cnn"), folder=None, seed=0, batch_size=128), path)
    found: list[Updates] = []
    for backend in twins.BOTH:
        spec = replace(
            twins.spec(backend, batch_size=128, seed=0), image_size=None, precision="float32", data=str(path)
        )
        worker = Worker(twins.BACKENDS[backend], perf_counter)
        worker.open(spec)
        changes = str(tmp_path / "update")
        once, twice = (worker.update(3, changes, roundoff=2.0**-10, runs=runs) for runs in (1, 2))
        assert once != twice
        noise = {name: each for name, each in twice.items() if each is not None}
        assert all(1 < (once[name] or math.inf) <= noise[name] < 1.1 for name in twice)
        own = tensors.load(Path(changes))
        found.append(Updates({name: shrunk ** len(found) * each for name, each in own.items()}, noise))
    gate = gates.judge_update(*found)
    assert gate.passed is passed
    assert gate.value == pytest.approx(1 / shrunk, rel=1e-3)


@pytest.mark.parametrize("backend", twins.BOTH)
def test_a_session_gives_its_memory_back_before_another_is_opened(backend: str, tmp_path: Path):
    dataset_file.save(
        datasets.load(workloads.get("digits-cnn"), folder=None, seed=0, batch_size=128), tmp_path / "dataset"
    )
    spec = replace(twins.spec(backend, batch_size=128), image_size=None, data=str(tmp_path / "dataset"))
    steps, alive = list[weakref.ref[Any]](), list[bool]()

    def opened(spec: RunSpec) -> Any:
        alive.extend(step() is not None for step in steps)
        session: Any = twins.BACKENDS[backend].open(spec)
        steps.append(weakref.ref(session._step))
        return session

    worker = Worker(cast(Backend, SimpleNamespace(open=opened)), perf_counter)
    for epochs in (1, 2):
        worker.open(replace(spec, epochs=epochs))
        worker.block(2)
    assert alive == [False]


def test_an_update_that_is_lost_in_storage_is_not_known():
    workload = workloads.get("digits-cnn")
    slow = replace(workload, optimizer=replace(workload.optimizer, learning_rate=1e-9))
    batches = datasets.load(workload, folder=None, seed=0, batch_size=128).train
    spec = replace(twins.spec("torch", batch_size=128, seed=0), image_size=None, precision="float32")
    spec = replace(spec, described=descriptions.to_json(slow))
    noise = training.measure_updates(twins.BACKENDS["torch"].open(spec), spec, batches, 3, 2.0**-23, 1).noise
    assert noise["dense.kernel"] == math.inf
    assert noise["dense.bias"] < 1.1  # which begins with zeros


@pytest.mark.parametrize("backend", twins.BOTH)
def test_an_update_has_what_running_statistics_have_moved_by(backend: str, monkeypatch: pytest.MonkeyPatch):
    twins.narrow(monkeypatch)
    workload = workloads.get("cifar-cnn")
    batches = datasets.load(workload, folder=None, seed=0, batch_size=8).train
    spec = replace(twins.spec(backend, "cifar-cnn", batch_size=8, seed=0), image_size=None)
    found = training.measure_updates(twins.BACKENDS[backend].open(spec), spec, batches, 3, 2.0**-52, 1)
    session = twins.BACKENDS[backend].open(spec)
    start = training.make_initial_weights(session, spec)
    session.assign(start)
    session.feed(training.draw_batches_of_epoch(spec, batches, 0))
    session.run(3)
    buffers = session.export().buffers
    assert found.changes.keys() == start.keys()
    assert buffers
    for name, array in buffers.items():
        np.testing.assert_allclose(found.changes[name], array - start[name], rtol=1e-9, atol=1e-12)
        assert found.changes[name].any()
        assert found.noise[name] == pytest.approx(1, abs=1e-6)


def test_batches_that_a_graph_reads_are_replaced_where_they_are():
    fed: Any = twins.session("torch")
    place = fed._input
    place._knobs = {**place._knobs, "graph-capture": True}
    first = twins.batches("digits-cnn", 3)
    second = [replace(each, images=-each.images) for each in first]
    fed.feed(first)
    graph = place._several = SimpleNamespace(images=place._stacked[0], labels=place._stacked[1])
    addresses = [tensor.data_ptr() for pair in place._pool for tensor in pair]
    place._position = 2
    fed.feed(second)
    assert place._several is graph
    assert [tensor.data_ptr() for pair in place._pool for tensor in pair] == addresses
    assert place._position == 0
    for images, labels, batch in zip(graph.images, graph.labels, second, strict=True):
        np.testing.assert_array_equal(images.permute(0, 2, 3, 1), batch.values())
        np.testing.assert_array_equal(labels, batch.labels)
    fed.feed(second[:2])  # of another number: the graph is another
    assert place._several is None
    assert len(place._stacked[1]) == len(place._pool) == 2
