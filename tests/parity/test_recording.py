"""The certificate records part by part, in execution order, and leaves nothing in memory."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compare.agreement import floors, gates, measures
from compare.base import tensors, workloads
from compare.base.interface import (
    Array,
    Arrays,
    Batch,
    Refused,
    RunSpec,
    Session,
)
from compare.base.precisions import PRECISIONS
from compare.data import dataset_file, weights
from compare.data.datasets import Dataset
from compare.settings import tunings
from compare.worker import recording
from jaxbackend.only.scans import scan_steps
from tests.parity import twins

STEPS = 2
PERTURBATIONS = [(floors.ULP64, 0, 2), (PRECISIONS["float32"].roundoff, 2, 3)]


@pytest.fixture(params=twins.BOTH)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> RunSpec:
    """Return the spec for recording two batches of digits with a backend, the parameter."""
    whole, test = twins.batches("digits-cnn", 1, size=16)[0], twins.batches("digits-cnn", 1)[0]
    dataset_file.save(Dataset(whole, test, ""), tmp_path / "data.safetensors")
    return twins.spec(request.param, data=str(tmp_path / "data.safetensors"))


def test_a_record_is_handed_over_part_by_part_in_execution_order(request: pytest.FixtureRequest, spec: RunSpec):
    given: list[tuple[str, Arrays]] = []
    backend = twins.BACKENDS[request.node.callspec.params["spec"]]
    names = recording.record(backend, spec, STEPS, lambda part, arrays: given.append((part, arrays)))
    assert [part for part, _ in given] == ["initial", "step1", "step2", "evaluation", "delta"]
    assert [name for _, arrays in given for name in arrays] == names
    for part, arrays in given:
        assert {name.partition("/")[0] for name in arrays} == {part}


@pytest.mark.parametrize("backend", twins.BOTH)
@pytest.mark.parametrize(("of_the_workload", "part"), [(512, 1 / 128), (4, 1.0), (2, 1.0)])
def test_sgd_steps_at_the_rate_of_its_batch(
    backend: str, of_the_workload: int, part: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    twins.narrow(monkeypatch)
    small = replace(workloads.get("cifar-cnn"), batch_size=of_the_workload)
    monkeypatch.setattr(workloads, "WORKLOADS", {"cifar-cnn": small})
    train = twins.batches("cifar-cnn", 1, size=4)[0]
    dataset_file.save(Dataset(train, train, ""), tmp_path / "data.safetensors")
    spec = twins.spec(backend, "cifar-cnn", batch_size=4, data=str(tmp_path / "data.safetensors"))
    found = twins.recorded(twins.BACKENDS[backend], spec, 1)
    step = 1.9 * found["step1/gradient/dense.kernel"]  # Nesterov's first, with a momentum of 0.9
    assert measures.compute_relative_error(found["step1/update/dense.kernel"], -0.05 * part * step) < 1e-12


def test_a_dispatch_of_many_steps_is_recorded_with_as_many_as_there_are(
    spec: RunSpec, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    if request.node.callspec.params["spec"] == "torch":
        pytest.skip("torch takes several steps in a captured graph, which needs a GPU")
    backend, several = twins.BACKENDS["jax"], scan_steps
    plain = twins.recorded(backend, spec, STEPS)
    spec = replace(spec, knobs=tunings.resolve("jax", "compiled+steps-per-dispatch=24", "cpu", "digits-cnn"))
    errors = gates.measure_errors(plain, twins.recorded(backend, spec, STEPS))
    assert max(errors.values()) < 1e-10

    def brighter(step: Any, knobs: Any) -> Any:
        return several(lambda state, images, labels: step(state, 2 * images, labels), knobs)

    monkeypatch.setattr("jaxbackend.step.scan_steps", brighter)
    errors = gates.measure_errors(plain, twins.recorded(backend, spec, STEPS))
    assert errors["delta/conv.kernel"] > 0.01
    assert max(error for name, error in errors.items() if not name.startswith("delta/")) < 1e-10


def test_adam_steps_at_its_own_rate(request: pytest.FixtureRequest, spec: RunSpec):
    backend = twins.BACKENDS[request.node.callspec.params["spec"]]
    found = twins.recorded(backend, spec, 1)
    assert abs(found["step1/update/dense.kernel"]).max() == pytest.approx(1e-3, rel=1e-4)


def test_in_float16_a_lower_loss_scale_hands_every_part_over_anew(request: pytest.FixtureRequest, spec: RunSpec):
    given: list[str] = []
    kept: Arrays = {}
    backend = twins.BACKENDS[request.node.callspec.params["spec"]]

    def keep(part: str, arrays: Arrays) -> None:
        given.append(part)
        kept.update(arrays)

    names = recording.record(backend, replace(spec, precision="float16", loss_scale=2.0**60), STEPS, keep)
    assert given == ["initial", "step1", "step2", "evaluation", "delta"] * 2  # 2^60 overflows, 2^11 does not
    assert kept.keys() == set(names)
    assert all(np.isfinite(array).all() for array in kept.values())
    assert any(kept["step1/update/dense.kernel"].ravel())


def test_a_noise_floor_has_all_that_is_compared_and_leaves_no_file(request: pytest.FixtureRequest, spec: RunSpec):
    backend = twins.BACKENDS[request.node.callspec.params["spec"]]
    record = twins.recorded(backend, spec, STEPS)
    ulp, roundoff = recording.measure_noise(backend, spec, STEPS, PERTURBATIONS)
    assert ulp.keys() == roundoff.keys() == measures.compute_changes(record).keys()
    # A file has an order of its own. This order decides which differing tensor is the first.
    assert measures.sort_by_execution(list(ulp)) == measures.sort_by_execution(list(measures.compute_changes(record)))
    worst = "step1/gradient/dense.kernel"
    assert 0 < ulp[worst] < 1e-12 < roundoff[worst] < 1e-4
    assert [path.name for path in Path(spec.data).parent.iterdir()] == ["data.safetensors"]


def test_a_noise_floor_is_the_same_from_memory_and_from_files(
    request: pytest.FixtureRequest, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
):
    backend = twins.BACKENDS[request.node.callspec.params["spec"]]
    found, written = list[list[recording.Floor]](), list[Path]()

    def saved(arrays: Arrays, path: Path) -> None:
        written.append(path)
        save(arrays, path)

    save = tensors.save
    monkeypatch.setattr(tensors, "save", saved)
    for available, files in ((51, 0), (50, STEPS + 2)):
        memory = SimpleNamespace(total=100, available=available)
        monkeypatch.setattr(tensors.psutil, "virtual_memory", lambda memory=memory: memory)
        found.append(recording.measure_noise(backend, spec, STEPS, PERTURBATIONS))
        assert len(written) == files
    for in_memory, in_files in zip(*found, strict=True):  # torch's arrays have another order of elements in files
        assert in_files == pytest.approx(in_memory, rel=1e-12)


def test_no_batch_is_made_or_moved_that_is_not_taken(
    request: pytest.FixtureRequest, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
):
    backend = twins.BACKENDS[request.node.callspec.params["spec"]]
    kind, perturbed = type(backend.open(spec)), weights.perturb
    feed, fed, moved = kind.feed, list[int](), list[tuple[int, ...]]()

    def counted(self: Session, batches: Sequence[Batch]) -> None:
        fed.append(len(batches))
        feed(self, batches)

    def noted(array: Array, *arguments: Any) -> Array:
        moved.append(array.shape)
        return perturbed(array, *arguments)

    train, test = dataset_file.load(spec.data)
    many = Batch(np.concatenate([train.images] * 8), np.concatenate([train.labels] * 8), train.levels)
    dataset_file.save(Dataset(many, test, ""), Path(spec.data))
    monkeypatch.setattr(kind, "feed", counted)
    for evenly in (True, False):
        recording.record(backend, spec, STEPS, lambda part, arrays: None, evenly=evenly)
    assert fed == [*[1] * STEPS, STEPS + 1]  # one more is one that steps do not take
    monkeypatch.setattr(weights, "perturb", noted)
    recording.measure_noise(backend, spec, STEPS, [(1e-12, 0, 2)])
    assert moved.count((spec.batch_size, *train.images.shape[1:])) == 2 * STEPS  # in each of two runs


def test_the_arrays_of_one_step_alone_are_held_where_memory_is_short(
    request: pytest.FixtureRequest, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
):
    backend = twins.BACKENDS[request.node.callspec.params["spec"]]
    kind = type(backend.open(spec))
    inspect, held = kind.inspect, list[weakref.ref[Array]]()
    alive: list[int] = []

    def inspected(self: Session, batch: Batch) -> Arrays:
        alive.append(sum(each() is not None for each in held))
        found = inspect(self, batch)
        held[:] = [weakref.ref(array) for name, array in found.items() if "buffer/" not in name]
        return found

    monkeypatch.setattr(kind, "inspect", inspected)
    monkeypatch.setattr(tensors.psutil, "virtual_memory", lambda: SimpleNamespace(total=100, available=50))
    recording.record(backend, spec, STEPS, lambda part, arrays: None)
    assert alive == [0] * STEPS
    recording.measure_noise(backend, spec, STEPS, PERTURBATIONS)
    assert alive == [0] * (STEPS * (1 + 1 + 3) + 1)  # the record, the unmoved run, three moved ones, a step again


def test_a_state_that_comes_back_with_no_start_is_no_noise(
    request: pytest.FixtureRequest, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
):
    backend = twins.BACKENDS[request.node.callspec.params["spec"]]
    kind, taken = type(backend.open(spec)), list[int]()
    inspect = kind.inspect

    def drifting(self: Session, batch: Batch) -> Arrays:
        taken.append(1)
        found = inspect(self, batch)
        return {name: array * (1 + 1e-6 * len(taken)) if "logits" in name else array for name, array in found.items()}

    monkeypatch.setattr(kind, "inspect", drifting)
    with pytest.raises(
        Refused, match=r"the same step from the same start gives another step1/logits .*: the model keeps"
    ):
        recording.measure_noise(backend, spec, STEPS, PERTURBATIONS)
