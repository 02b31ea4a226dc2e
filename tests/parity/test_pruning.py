"""A pruned model computes what the full model computes with zeros in the removed channels, in both backends."""

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from compare.agreement.gates import PRUNING
from compare.base import descriptions
from compare.base.commands import PruningCheck
from compare.base.interface import INFER, TRAIN
from compare.base.workloads import Workload
from compare.data import dataset_file, datasets, pruning, weights
from compare.worker import recording
from compare.worker.worker import Worker
from tests.parity import small, twins

SIDES = {**small.SIDES, "digits-cnn": 8}
LARGER: dict[str, Any] = {
    "resnet50": {"depths": (2, 1), "widths": (4, 8)},  # a bottleneck without a projection at its sum
    "cifar-resnet18": {"depths": (2, 1), "widths": (4, 8)},
    "mobilenet-v2": {"stem": 8, "stages": ((1, 4, 1, 1), (3, 12, 2, 2)), "head": 8},
}


def prune(name: str, score: str = "kernels") -> Workload:
    workload = small.small(name, SIDES[name], **LARGER.get(name, {}))
    return replace(workload, model=pruning.prune(workload.model, 0.5, 1, score))


def check(workload: Workload, backend: str, folder: Any, task: str = TRAIN) -> PruningCheck:
    data = datasets.load(workload, folder=None, seed=0, batch_size=small.BATCH)
    path = folder / "dataset.safetensors"
    dataset_file.save(data, path)
    spec = small.spec(workload, backend, "stock", data=str(path), task=task)
    return recording.check_pruning(twins.BACKENDS[backend], spec)


# jax compiles every operation of a float64 model for seconds, so it shows only the models with sums and with depths.
CHECKED = [*((name, "torch") for name in sorted(small.SIDES)), ("resnet50", "jax"), ("mobilenet-v2", "jax")]


@pytest.mark.parametrize(("name", "backend"), CHECKED)
def test_it_computes_what_the_masked_model_computes(name: str, backend: str, tmp_path: Any):
    found = check(prune(name), backend, tmp_path)
    assert found.error is not None
    assert found.error <= PRUNING.limit


@pytest.mark.parametrize("backend", twins.BOTH)
def test_it_answers_requests_as_the_masked_model_does(backend: str, tmp_path: Any):
    found = check(prune("digits-cnn"), backend, tmp_path, INFER)
    assert found.error is not None
    assert found.error <= PRUNING.limit


def shapes(workload: Workload, backend: str) -> dict[str, tuple[int, ...]]:
    return dict(twins.BACKENDS[backend].open(small.spec(workload, backend, "stock")).signature())


@pytest.mark.parametrize("backend", twins.BOTH)
@pytest.mark.parametrize("name", sorted(small.SIDES))
def test_it_knows_the_shapes_of_the_full_model(name: str, backend: str):
    workload = prune(name)
    full = replace(workload, model=pruning.full(workload.model))
    assert pruning.full_shapes(workload.model, shapes(workload, backend)) == shapes(full, backend)


def fails(found: PruningCheck) -> bool:
    return found.error is None or found.error > 1e-3


@pytest.mark.parametrize("backend", twins.BOTH)
class TestFaults:
    def test_a_group_that_keeps_other_channels(self, backend: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
        choose, calls = pruning.choose_channels, []

        def choose_wrongly(model: Any, values: Any) -> Any:
            kept = choose(model, values)
            calls.append(1)
            if len(calls) == 1:  # the pruned model, before the masked model
                name = next(name for name in kept if name.startswith("blocks"))
                count = pruning.layers(pruning.full(model))
                total = next(layer.outputs.count for layer in count if layer.outputs.name == name)
                kept[name] = np.setdiff1d(np.arange(total), kept[name])[: len(kept[name])]
            return kept

        monkeypatch.setattr(pruning, "choose_channels", choose_wrongly)
        assert fails(check(prune("cifar-resnet18"), backend, tmp_path))

    def test_a_batch_norm_that_keeps_its_bias(self, backend: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
        mask = pruning.mask

        def forget(model: Any, values: Any, kept: Any) -> Any:
            biases = {name: array for name, array in values.items() if name.endswith("norm.bias")}
            return {**mask(model, values, kept), **biases}

        monkeypatch.setattr(pruning, "mask", forget)
        assert fails(check(prune("cifar-resnet18"), backend, tmp_path))


@pytest.mark.parametrize("backend", twins.BOTH)
def test_a_trained_full_model_gives_the_weights_of_the_pruned_one(backend: str, tmp_path: Any):
    workload = prune("digits-cnn")
    full = replace(workload, model=pruning.full(workload.model))
    data = tmp_path / "dataset.safetensors"
    dataset_file.save(datasets.load(workload, folder=None, seed=0, batch_size=small.BATCH), data)
    spec = small.spec(full, backend, "stock", data=str(data), epochs=1)
    path = tmp_path / "weights.safetensors"
    result = Worker(twins.BACKENDS[backend], perf_counter).train_model(spec, str(path))
    assert len(result.loss) == 1
    assert result.test_accuracy is not None
    trained = weights.load(str(path))
    assert {name: array.shape for name, array in trained.items()} == shapes(full, backend)
    initial = weights.initialise(shapes(full, backend), spec.seed)
    assert not np.allclose(trained["conv.kernel"], initial["conv.kernel"])
    cut = pruning.cut(workload.model, trained, pruning.choose_channels(workload.model, trained))
    assert {name: array.shape for name, array in cut.items()} == shapes(workload, backend)


def test_both_backends_get_the_same_weights():
    workload = prune("cifar-resnet18", "batch-norm")  # all scales are 1 at first, so every score ties
    sides = [
        pruning.fill(workload.model, shapes(workload, backend), lambda full: weights.initialise(full, 3))
        for backend in twins.BOTH
    ]
    for name, array in sides[0].items():
        assert np.array_equal(array, sides[1][name]), name
    assert descriptions.describe_arithmetic(workload)["model"]["pruned"]["score"] == "batch-norm"
