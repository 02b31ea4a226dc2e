"""Several devices train as one does: virtual ones of JAX's, processes of torch's, each backend in its worker."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from compare import descriptions, knobs, recording, variables, workloads
from compare.child import Child
from compare.data import Dataset, store, synthetic
from compare.interface import Arrays, ContenderFailed
from tests.parity import twins

pytestmark = pytest.mark.xdist_group("devices")  # whose children are started once

STEPS, BATCH, PIXELS, MOST = 2, 8, 7, 4
LIMIT = 1e-10
WAYS = {"jax": ("sharded", "pmap"), "torch": ("ddp",)}
WORKLOAD = replace(
    workloads.get("cifar-cnn"),
    name="narrow",
    model=replace(twins.narrowed(workloads.get("cifar-cnn").model), image=(PIXELS, PIXELS, 3)),
)


class Recorder:
    """A child of each backend, and what it recorded in float64."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._children = folder, dict[str, Child]()
        self._made: dict[tuple[str, str, int, str], Arrays] = {}
        train, test = synthetic.make(WORKLOAD.model.image, classes=10, seed=1, train=STEPS * BATCH, test=BATCH)
        store.save(Dataset(train, test, "synthetic"), folder / "data.safetensors")

    def child(self, backend: str) -> Child:
        if backend not in self._children:
            self._children[backend] = self.started(backend)
        return self._children[backend]

    def started(self, backend: str) -> Child:
        added = variables.child_environment(backend, {}, "cpu", False, os.environ, devices=MOST)
        added["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # compiling would take most of the time
        child = Child(backend, f"{backend}backend", added, self._folder)
        child.greet(120)
        return child

    def spec(self, backend: str, tuning: str, devices: int, batch_norm: str) -> dict[str, Any]:
        return {
            "workload": WORKLOAD.name,
            "precision": "float64",
            "device": "cpu",
            "batch_size": BATCH,
            "seed": 3,
            "knobs": knobs.resolve(backend, tuning, "cpu", WORKLOAD.name),
            "epochs": 1,
            "data": str(self._folder / "data.safetensors"),
            "described": descriptions.to_json(WORKLOAD),
            "devices": devices,
            "batch_norm": batch_norm,
        }

    def record(self, backend: str, tuning: str, devices: int = 1, batch_norm: str = "sync") -> Arrays:
        key = backend, tuning, devices, batch_norm
        if key not in self._made:
            path = self._folder / "record.safetensors"
            names = self.child(backend).call("record", 300, spec=self.spec(*key), steps=STEPS, path=str(path))
            self._made[key] = recording.load(path, names)
        return self._made[key]

    def close(self) -> None:
        for child in self._children.values():
            child.close()


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    made = Recorder(tmp_path_factory.mktemp("devices"))
    yield made
    made.close()


def distance(a: Arrays, b: Arrays) -> float:
    """Return the largest relative distance of two records, all of whose names and shapes are the same."""
    assert a.keys() == b.keys()
    assert all(a[name].shape == b[name].shape for name in a)
    return max(float(np.linalg.norm(a[name] - b[name]) / max(np.linalg.norm(b[name]), 1e-30)) for name in a)


@pytest.mark.parametrize(
    ("backend", "tuning", "devices"),
    [
        ("jax", "stock+sharded", 2),
        ("jax", "compiled+sharded+steps-per-dispatch=2", 4),
        ("jax", "compiled+pmap+steps-per-dispatch=2", 2),
        ("jax", "stock+pmap", 4),
        pytest.param("jax", "stock+sharded+rematerialisation", 2, marks=pytest.mark.thorough),
        ("torch", "stock+ddp", 2),
        ("torch", "stock+ddp+rematerialisation", 2),
        pytest.param("torch", "compiled+ddp", 2, marks=pytest.mark.thorough),
        pytest.param("torch", "compiled+ddp+rematerialisation", 2, marks=pytest.mark.thorough),
    ],
)
def test_devices_with_synchronised_batch_norm_train_as_one_does(
    recorder: Recorder, backend: str, tuning: str, devices: int
):
    assert distance(recorder.record(backend, tuning, devices), recorder.record(backend, "stock")) <= LIMIT


def test_the_two_backends_agree_on_two_devices(recorder: Recorder):
    torch = recorder.record("torch", "stock+ddp", 2)
    assert distance(recorder.record("jax", "stock+sharded", 2), torch) <= LIMIT


def test_local_batch_norm_is_the_same_in_both_backends_and_not_that_of_one_device(recorder: Recorder):
    mapped = recorder.record("jax", "stock+pmap", 2, "local")
    assert distance(mapped, recorder.record("torch", "stock+ddp", 2, "local")) <= LIMIT
    assert distance(mapped, recorder.record("jax", "stock")) > 0.01
    several = recorder.record("jax", "compiled+pmap+steps-per-dispatch=2", 2, "local")
    assert distance(several, mapped) <= LIMIT


@pytest.mark.parametrize(("backend", "way"), [(backend, way) for backend, ways in WAYS.items() for way in ways])
def test_settings_tell_how_a_batch_is_split(recorder: Recorder, backend: str, way: str):
    child = recorder.child(backend)
    child.call("open", 120, spec=recorder.spec(backend, f"stock+{way}", 2, "sync"))
    child.call("block", 120, steps=2)
    found = child.call("settings", 120)
    told = {name: found[name] for name in ("parallel", "devices", "batch_norm", "batch_size")}
    assert told == {"parallel": way, "devices": 2, "batch_norm": "sync", "batch_size": BATCH}
    proof = child.call("proof", 120, steps=2)
    assert (proof["dispatched"], proof["not_finite"]) == (proof["exported"], None)


@pytest.mark.parametrize("way", WAYS["jax"])
def test_virtual_devices_do_not_wait_for_each_other_forever(recorder: Recorder, way: str):
    child = recorder.child("jax")
    child.call("open", 120, spec=recorder.spec("jax", f"stock+{way}", 4, "sync"))
    assert child.call("block", 60, steps=200) > 0


def test_devices_that_are_not_there_are_refused_by_name(recorder: Recorder):
    child = recorder.started("jax")
    with pytest.raises(ContenderFailed, match=r"5 cpu devices are not there; jax sees 4") as failure:
        child.call("open", 120, spec=recorder.spec("jax", "stock+pmap", 5, "sync"))
    assert failure.value.status == "refused"


@pytest.mark.parametrize(
    ("signal", "deadline", "status", "reason"),
    [("SIGKILL", 60, "crash", r"rank 1 of 2|closed"), ("SIGSTOP", 5, "timeout", "deadline of 5 s")],
)
def test_a_rank_that_dies_or_hangs_ends_its_contender_with_all_its_processes(
    recorder: Recorder, signal: str, deadline: float, status: str, reason: str
):
    child = recorder.started("torch")
    child.call("open", 120, spec=recorder.spec("torch", "stock+ddp", 2, "sync"))
    family = psutil.Process(child.pid).children(recursive=True)
    rank = max(family, key=lambda each: each.memory_info().rss)
    rank.send_signal({"SIGKILL": 9, "SIGSTOP": 19}[signal])
    with pytest.raises(ContenderFailed, match=reason) as failure:
        child.call("block", deadline, steps=2)
    assert failure.value.status == status
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
