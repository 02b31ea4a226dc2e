"""Whole training runs of narrow models on a CPU: both backends learn, and learn the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compare import data, training, workloads
from tests.parity import twins

EPOCHS, BATCH, SIZE, CLASSES = 5, 16, 17, 5


@pytest.mark.parametrize("name", ["vgg16", "mobilenet-v2", "unet"])
def test_both_backends_learn_the_same(name: str, monkeypatch: pytest.MonkeyPatch):
    real = workloads.get(name)
    narrow = replace(real, model=twins.narrowed(real.model, image=(SIZE, SIZE, 3), classes=CLASSES))
    monkeypatch.setattr(workloads, "WORKLOADS", {name: narrow})
    dataset = data.load(narrow, folder=None, seed=0, batch_size=BATCH)
    found: list[dict[str, Any]] = []
    for backend in twins.BOTH:
        spec = replace(twins.spec(backend), workload=name, precision="float32", batch_size=BATCH, epochs=EPOCHS, seed=0)
        session = twins.BACKENDS[backend].open(spec)
        found.append(training.train(session, spec, dataset.train, dataset.test))
    ours, theirs = found
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-3)
    assert abs(ours["test_accuracy"] - theirs["test_accuracy"]) < 0.01
    for each in found:
        assert each["loss"][-1] < 0.92 * each["loss"][0]
        if name == "unet":  # an accuracy of pixels; the commonest class alone is no skill
            assert each["test_accuracy"] > (dataset.test.labels == 0).mean() + 0.05
