"""Micro-batches: a step over equal parts of its batch against steps on each part alone."""

from typing import Any

import numpy as np
import pytest

from compare.base.interface import Arrays, Batch, Session
from tests.parity import twins

PARTS = 4
BOTH = pytest.mark.parametrize("backend", twins.BOTH)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch):
    twins.narrow(monkeypatch)


def close(found: Arrays, wanted: Arrays, tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)


def parts(batch: Batch) -> list[Batch]:
    pairs = zip(np.split(batch.images, PARTS), np.split(batch.labels, PARTS), strict=True)
    return [Batch(images, labels) for images, labels in pairs]


@BOTH
def test_without_batch_norm_micro_batches_are_the_batch(backend: str):
    (batch,) = twins.batches("digits-cnn", 1)
    whole = twins.session(backend).inspect(batch)
    close(twins.session(backend, accumulate=PARTS).inspect(batch), whole, 1e-12)


@BOTH
def test_each_micro_batch_has_its_own_batch_norm_and_loss_and_gradients_are_means(backend: str):
    (batch,) = twins.batches("cifar-cnn", 1)
    session, alone = twins.session(backend, "cifar-cnn", accumulate=PARTS), twins.session(backend, "cifar-cnn")
    state = session.export()
    found, taken = session.inspect(batch), list[Arrays]()
    buffers = state.buffers
    for part in parts(batch):
        alone.assign({**state.parameters, **buffers})  # every part sees the parameters as they were
        taken.append(alone.inspect(part))
        buffers = alone.export().buffers
    for name, array in found.items():
        each = [record[name] for record in taken]
        if name.startswith(("activation/", "logits")):
            wanted = np.concatenate(each)
        elif name.startswith("buffer/"):
            wanted = each[-1]
        else:  # the first step's update, too: it is linear in the gradient
            wanted = np.mean(each, 0)
        np.testing.assert_allclose(array, wanted, rtol=1e-11, atol=1e-13, err_msg=name)
    assert not np.allclose(found["loss"], twins.session(backend, "cifar-cnn").inspect(batch)["loss"])


TUNINGS: list[Any] = [
    pytest.param("jax", "compile=off", marks=pytest.mark.thorough),
    pytest.param("jax", "compiled+steps-per-dispatch=3", marks=pytest.mark.thorough),
    ("torch", "tuned"),
    pytest.param("torch", "compiled", marks=pytest.mark.thorough),
]


def ran(session: Session) -> Arrays:
    exported = twins.trained(session, twins.batches("cifar-cnn", 3), 7).export()
    assert exported.step == 7
    return {**exported.parameters, **exported.buffers, **exported.optimizer, "losses": session.losses()}


@pytest.mark.parametrize(("backend", "tuning"), TUNINGS)
def test_every_tuning_takes_the_same_micro_batches(backend: str, tuning: str):
    wanted = ran(twins.session(backend, "cifar-cnn", accumulate=2))
    close(ran(twins.session(backend, "cifar-cnn", tuning, accumulate=2)), wanted, 1e-11)


def test_the_backends_take_the_same_micro_batches():
    ours, theirs = (ran(twins.session(backend, "cifar-cnn", accumulate=PARTS)) for backend in twins.BOTH)
    close(ours, theirs, 1e-10)


@BOTH
def test_one_micro_batch_that_overflows_in_float16_skips_the_update(backend: str):
    (batch,) = twins.batches("cifar-cnn", 1)
    images = batch.images.copy()
    images[5] *= 1e5  # in the third of four parts
    session = twins.session(backend, "cifar-cnn", precision="float16", accumulate=PARTS, loss_scale=2.0)
    found = session.inspect(Batch(images, batch.labels))
    assert not np.isfinite(found["gradient/blocks.0.conv.kernel"]).all()
    assert not any(array.any() for name, array in found.items() if name.startswith("update/"))
    assert any(array.any() for name, array in session.inspect(batch).items() if name.startswith("update/"))


@BOTH
def test_settings_tell_the_number_of_micro_batches(backend: str):
    session = twins.trained(twins.session(backend, accumulate=2), twins.batches("digits-cnn", 1), 1)
    found = session.settings()
    assert (found["batch_size"], found["accumulate"]) == (8, 2)
