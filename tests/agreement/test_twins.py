"""Real records of both backends: they certify, and a small difference planted in one of them is caught and named."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import jaxbackend.layers
import torchbackend.layers
from compare.agreement import certificate
from compare.agreement.floors import Noise
from compare.base import workloads
from compare.base.interface import Arrays
from compare.data import dataset_file, synthetic
from compare.data.datasets import Dataset
from tests.numpybackend import backend as numpybackend
from tests.parity import twins

BATCH_SIZE = {"digits-cnn": 16, "cifar-cnn": 8}
PRECISIONS = ("float64", "float32")
Records = dict[str, Arrays]

pytestmark = pytest.mark.xdist_group("twins")  # their records are made once


def recorded(folder: Path, backend: str, workload: str, precisions: tuple[str, ...] = PRECISIONS) -> Records:
    """Return the records of three steps by precision."""
    size, file = BATCH_SIZE[workload], folder / f"{workload}.safetensors"
    model = workloads.get(workload).model.resized(twins.IMAGE_SIZE[workload])
    train, test = synthetic.make(model.image, classes=model.classes, seed=1, train=2 * size, test=size)
    dataset_file.save(Dataset(train, test, ""), file)
    found: Records = {}
    for precision in precisions:
        spec = twins.spec(backend, workload, precision=precision, batch_size=size, data=str(file))
        found[precision] = twins.recorded(twins.BACKENDS[backend], spec, 3)
    return found


@pytest.fixture(scope="module", params=twins.WORKLOADS)
def records(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the workload's name and each backend's records."""
    with pytest.MonkeyPatch.context() as patch:
        twins.narrow(patch)
        folder = tmp_path_factory.mktemp("data")
        return {"workload": request.param} | {name: recorded(folder, name, request.param) for name in twins.BOTH}


def judged(baseline: Records, contender: Records) -> certificate.Certificate:
    return certificate.judge(baseline, contender, "float64", Noise({}))


def test_the_twins_certify(records: dict[str, Any]):
    found = judged(records["torch"], records["jax"])
    assert found.first_mismatch is None
    assert found.passed
    semantic, scaling = found.gates
    assert semantic.value is not None
    assert scaling.value is not None
    assert semantic.value <= 1e-10
    assert scaling.value >= 1e6


@pytest.mark.parametrize("records", ["digits-cnn"], indirect=True)
def test_an_added_backend_certifies_with_torch(
    records: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(twins.BACKENDS, "torch", numpybackend.BACKEND)  # takes torch's place and its spec
    assert judged(records["torch"], recorded(tmp_path, "torch", "digits-cnn")).passed


def test_either_side_may_be_the_baseline(records: dict[str, Any]):
    assert judged(records["jax"], records["torch"]).passed


PLANTED = [
    ("torch", torchbackend.layers, "epsilon", 1.001e-5, "step1/activation/blocks.0.norm "),
    ("jax", jaxbackend.layers, "momentum", 0.11, "step1/buffer/blocks.0.norm.mean "),
]


@pytest.mark.thorough  # the planted bugs show the same, on smaller shapes
@pytest.mark.parametrize("records", ["cifar-cnn"], indirect=True)
@pytest.mark.parametrize(("backend", "layers", "argument", "value", "first"), PLANTED)
def test_a_difference_in_batch_norm_is_caught(
    records: dict[str, Any],
    backend: str,
    layers: ModuleType,
    argument: str,
    value: float,
    first: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    twins.narrow(monkeypatch)
    monkeypatch.setitem(layers.BatchNorm.__init__.__kwdefaults__, argument, value)
    # Compiling again for float32 would add nothing: the semantic gate is float64's.
    changed = records[backend] | recorded(tmp_path, backend, "cifar-cnn", ("float64",))
    found = judged(records["jax" if backend == "torch" else "torch"], changed)
    assert not found.gates[0].passed
    assert (found.first_mismatch or "").startswith(first)


@pytest.mark.thorough  # as above
@pytest.mark.parametrize("records", ["cifar-cnn"], indirect=True)
def test_a_learning_rate_off_by_a_millionth_is_caught(
    records: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    twins.narrow(monkeypatch, learning_rate=0.05 * (1 + 1e-6))
    found = judged(records["jax"], recorded(tmp_path, "torch", "cifar-cnn"))
    assert not found.gates[0].passed
    assert (found.first_mismatch or "").startswith("step1/update/blocks.0.conv.kernel ")
