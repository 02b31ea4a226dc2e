"""When a worker goes on with the session that it has open, and that the next seed is then trained as in a fresh one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.base import workloads
from compare.base.interface import RunSpec
from compare.data import dataset_file, datasets
from compare.worker.worker import Worker
from tests.fakebackend.script import Silent
from tests.fakebackend.session import FakeBackend, FakeSession


def spec(folder: Path, seed: int, **changes: Any) -> RunSpec:
    path = folder / f"{seed}.safetensors"
    if not path.exists():
        dataset_file.save(datasets.load(workloads.get("digits-cnn"), folder=None, seed=seed, batch_size=64), path)
    knobs = {"steps-per-dispatch": 1}
    told = {"precision": "float64", "device": "cpu", "batch_size": 64, "knobs": knobs, "epochs": 1, **changes}
    return RunSpec(workload="digits-cnn", seed=seed, data=str(path), **told)


class Counting(FakeBackend):
    """The fake backend, with the number of sessions that it has opened."""

    sessions = 0

    def open(self, spec: RunSpec) -> FakeSession:
        self.sessions += 1
        return super().open(spec)


class Seen(Worker):
    """A worker of the fake backend, which counts."""

    def __init__(self) -> None:
        script = Silent("fake", json.dumps({"folder": ""}))
        self.backend = Counting(script)
        super().__init__(self.backend, script.clock)


def test_another_seed_is_trained_in_the_same_session_as_in_a_fresh_one(tmp_path: Path) -> None:
    seen, fresh = Seen(), Seen()
    seen.open(spec(tmp_path, 0))
    seen.train()
    told = seen.open(spec(tmp_path, 1))
    trained = seen.train()
    assert seen.backend.sessions == 1
    assert (fresh.open(spec(tmp_path, 1)), fresh.train()) == (told, trained)


def test_a_training_for_its_test_accuracy_has_all_but_the_training_accuracy(tmp_path: Path) -> None:
    seen = Seen()
    seen.open(spec(tmp_path, 0))
    whole, only_test = seen.train(), seen.train(only_test=True)
    assert whole.train_accuracy is not None
    assert only_test == replace(whole, train_accuracy=None)


@pytest.mark.parametrize("change", [{"batch_size": 32}, {"precision": "float32"}, {"knobs": {"steps-per-dispatch": 2}}])
def test_a_session_ends_where_anything_else_is_new(tmp_path: Path, change: dict[str, Any]) -> None:
    seen = Seen()
    seen.open(spec(tmp_path, 0))
    seen.open(spec(tmp_path, 1, **change))
    assert seen.backend.sessions == 2
