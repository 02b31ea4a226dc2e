"""What a worker says of the work that it has done, with a fake backend and scripted time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import data, workloads
from compare.data import store
from compare.interface import RunSpec
from compare.worker import Worker
from tests.fakebackend.script import Script
from tests.fakebackend.session import FakeBackend, FakeSession


class Silent(Script):
    """A script without log or files."""

    def at(self, place: str) -> None:
        pass

    def _claim_number(self) -> int:
        return 0


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "data.safetensors"
    store.save(data.load(workloads.get("digits-cnn"), folder=None, seed=0, batch_size=64), path)
    return RunSpec("digits-cnn", "float64", "cpu", 64, 0, {"steps-per-dispatch": 7}, 1, str(path)).to_json()


def opened(spec: dict[str, Any], **behaviour: Any) -> Worker:
    script = Silent("fake", json.dumps({"folder": "", "fake": behaviour}))
    worker = Worker(FakeBackend(script), script.clock)
    worker.open(spec)
    return worker


def test_what_a_first_dispatch_took_longer_than_its_steps_take_is_compilation(spec: dict[str, Any]) -> None:
    found = opened(spec, compile_seconds=8.0).warm_up(0.02, None)
    assert found["compile_seconds"] == pytest.approx(8, abs=1e-6)
    assert found["first_step_seconds"] == pytest.approx(8.007)


def test_steps_of_a_spin_are_all_that_were_taken(spec: dict[str, Any]) -> None:
    assert opened(spec, step_seconds=0.01).spin(0.2, 14) == 28


def test_a_loss_that_is_not_finite_has_its_step_though_the_first_losses_are_not_kept(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = opened(spec)
    monkeypatch.setattr(FakeSession, "losses", lambda _: np.array([1.0, np.nan, 1.0]))
    assert worker.proof(14)["not_finite"] == 27  # of 28 steps the last three are kept
    monkeypatch.setattr(FakeSession, "losses", lambda _: np.ones(3))
    assert worker.proof(14)["not_finite"] is None


def test_buffers_are_no_parameters(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    dense, norm = FakeSession.signature, {f"norm.{name}": (5,) for name in ("scale", "bias", "mean", "var")}
    monkeypatch.setattr(FakeSession, "signature", lambda session: dense(session) | norm)
    assert opened(spec).open(spec)["parameter_count"] == 64 * 10 + 10 + 2 * 5


def test_what_is_not_finite_is_recorded_once_where_no_loss_is_scaled(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales, begin = list[float](), FakeBackend.open

    def begun(backend: FakeBackend, told: RunSpec) -> FakeSession:
        scales.append(told.loss_scale)
        return begin(backend, told)

    worker = opened(spec, fault="nan-gradient")
    monkeypatch.setattr(FakeBackend, "open", begun)
    worker.record(spec, 3, str(tmp_path / "record"))
    assert scales == [RunSpec(**spec).loss_scale]
