"""Certificates of requests with both frameworks: clean ones pass, and planted differences are found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import jaxbackend.inference
import torchbackend.inference
from compare.agreement import allowances, certificate, floors
from compare.agreement.certificate import Certificate
from compare.agreement.floors import Noise
from compare.base.interface import INFER, Array, Arrays, Backend, RunSpec
from compare.base.requests import InferenceSession
from compare.data import weights
from compare.settings import tunings
from compare.worker import answer_recording
from jaxbackend import layers
from jaxbackend.only import folded_arrays
from tests.parity import twins
from tests.planted.probes import Side
from tests.unoptimised import unoptimised as unoptimised
from torchbackend.only import folded_modules

pytestmark = pytest.mark.xdist_group("answers")  # the clean records are made once

PROBE, SIZES = "cifar-cnn", (1, 3)
Records = dict[str, Arrays]


def keep_all(backend: Backend, spec: RunSpec) -> Arrays:
    arrays: Arrays = {}
    answer_recording.record(backend, spec, SIZES, lambda _, part: arrays.update(part))
    return arrays


def record(backend: str, tuning: str, folder: Path) -> Records:
    """Return one side's records in float64 and float32."""
    made: Records = {}
    for precision in ("float64", "float32"):
        with pytest.MonkeyPatch.context() as patch:
            spec = Side.clean(PROBE, patch).spec(backend, precision, folder)
            knobs = tunings.resolve(backend, tuning, "cpu", spec.workload, precision, task=INFER)
            backend_spec = replace(spec, task=INFER, knobs=knobs)
            made[precision] = keep_all(twins.BACKENDS[backend], backend_spec)
    return made


def judge(baseline: Records, contender: Records) -> Certificate:
    return certificate.judge(*allowances.drop_folded(baseline, contender), "float64", Noise({}))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return record("torch", "stock", tmp_path_factory.mktemp("clean"))


FOLDED = ("jax:stock+fold-batch-norm", "torch:stock+fold-batch-norm")
CONSTANT = ("jax:stock+constant-weights", "torch:compiled+channels-last+constant-weights")


@pytest.mark.parametrize(
    "contender", ["jax:stock", *FOLDED, CONSTANT[0], pytest.param(CONSTANT[1], marks=pytest.mark.slow)]
)
def test_the_same_function_passes(contender: str, clean: Records, tmp_path: Path) -> None:
    backend, _, tuning = contender.partition(":")
    theirs = record(backend, tuning, tmp_path)
    assert {f"evaluation/batch-{size}" for size in SIZES} <= theirs["float64"].keys()
    assert ("step1/activation/blocks.0.conv" in theirs["float64"]) == ("fold" not in tuning)
    assert "step1/activation/blocks.0.norm" in theirs["float64"]
    assert judge(clean, theirs).passed


def test_the_noise_has_every_recorded_tensor(clean: Records, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        spec = replace(Side.clean(PROBE, patch).spec("torch", "float64", tmp_path), task=INFER)
        (floor,) = answer_recording.measure_noise(twins.BACKENDS["torch"], spec, SIZES, [(floors.ULP64, 0, 2)])
    assert floor.keys() == {name for name in clean["float64"] if not name.startswith("initial/")}
    assert all(0 < value < 1e-10 for value in floor.values())


def batch_statistics_in_torch(patch: pytest.MonkeyPatch) -> None:
    real = nn.Module.eval

    def leave_in_training(module: nn.Module) -> nn.Module:
        for each in real(module).modules():
            each.training = isinstance(each, nn.BatchNorm2d)
        return module

    patch.setattr(nn.Module, "eval", leave_in_training)


def batch_statistics_in_jax(patch: pytest.MonkeyPatch) -> None:
    def normalise(self: Any, x: Any) -> Any:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * self.scale[...] / jnp.sqrt(var + self.epsilon) + self.bias[...]

    patch.setattr(layers.BatchNorm, "__call__", normalise)


def dropout_in_torch(patch: pytest.MonkeyPatch) -> None:
    real = torchbackend.inference.InferenceSession._answer

    def drop(self: Any, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(real(self, images), 0.1, training=True)

    patch.setattr(torchbackend.inference.InferenceSession, "_answer", drop)


def epsilon_in_torch(patch: pytest.MonkeyPatch) -> None:
    real = folded_modules._fold

    def fold(conv: nn.Module, norm: nn.Module) -> None:
        patch.setattr(norm, "eps", 1.1e-5)
        real(conv, norm)

    patch.setattr(folded_modules, "_fold", fold)


def epsilon_in_jax(patch: pytest.MonkeyPatch) -> None:
    real = folded_arrays.fold
    patch.setattr(folded_arrays, "fold", lambda arrays, pairs: real(arrays, pairs, 1.1e-5))


def cast_in_torch(patch: pytest.MonkeyPatch) -> None:
    real = torchbackend.inference.InferenceSession._program

    def program(self: Any, images: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        answer = real(self, images)
        return lambda images: answer(images).float().to(images.dtype)

    patch.setattr(torchbackend.inference.InferenceSession, "_program", program)


def cast_in_exported_jax(patch: pytest.MonkeyPatch) -> None:
    real = jaxbackend.inference.InferenceSession._answer

    def answer(self: Any, variables: Any, images: Any) -> Any:
        logits = real(self, variables, images)
        return logits.astype(jnp.float32).astype(logits.dtype)

    patch.setattr(jaxbackend.inference.InferenceSession, "_answer", answer)


@pytest.mark.parametrize(
    ("plant", "contender", "tensor"),
    [
        (batch_statistics_in_torch, "torch:stock", "step1/activation/blocks.0.norm"),
        (batch_statistics_in_jax, "jax:stock", "step1/activation/blocks.0.norm"),
        (dropout_in_torch, "torch:stock", "step1/logits"),
        (epsilon_in_torch, "torch:stock+fold-batch-norm", "step1/activation/blocks.0.norm"),
        (epsilon_in_jax, "jax:stock+fold-batch-norm", "step1/activation/blocks.0.norm"),
        (cast_in_torch, "torch:stock", "evaluation/batch-1"),
        (cast_in_exported_jax, "jax:ahead-of-time", "evaluation/batch-1"),
    ],
)
def test_a_planted_difference_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    contender: str,
    tensor: str,
    clean: Records,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, _, tuning = contender.partition(":")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    plant(monkeypatch)
    found = judge(clean, record(backend, tuning, tmp_path))
    assert not found.passed
    assert found.tensor == tensor


def answer(contender: str, seeds: Sequence[int], precision: str = "float32") -> tuple[list[Array], Mapping[str, Any]]:
    """Return the logits of one batch by one session with the weights of each seed, and its settings."""
    backend, _, tuning = contender.partition(":")
    knobs = tunings.resolve(backend, tuning, "cpu", "digits-cnn", task=INFER)
    session = cast(InferenceSession, twins.session(backend, precision=precision, task=INFER, knobs=knobs, batch_size=2))
    logits = list[Array]()
    for seed in seeds:
        session.assign(weights.randomise(session.signature(), seed))
        twins.trained(session, twins.batches("digits-cnn", 1, size=2), 1)
        logits += session.answers()
    return logits, session.settings()


@pytest.mark.parametrize("contender", CONSTANT)
def test_a_program_with_constant_weights_has_those_that_were_assigned_last(contender: str) -> None:
    taken, settings = answer(contender.replace("+constant-weights", ""), (1, 2, 1))
    assert not settings["constant-weights"]
    held, settings = answer(contender, (1, 2, 1))
    assert settings["constant-weights"]
    np.testing.assert_allclose(held, taken, rtol=1e-5, atol=1e-5)
    assert not np.allclose(held[0], held[1], rtol=0.01)
    np.testing.assert_allclose(answer(contender, (1,), "float64")[0], taken[:1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights_held", [False, True])
def test_a_captured_program_answers_in_turn_from_buffers_that_keep_their_addresses(weights_held: bool) -> None:
    knobs = tunings.resolve("jax", "compiled", "cpu", "digits-cnn", task=INFER) | {"constant-weights": weights_held}
    pool = twins.batches("digits-cnn", 4, size=2)  # not as many as answers are kept

    def open_session(captured: bool) -> Any:
        changes: dict[str, Any] = {"task": INFER, "knobs": knobs | {"graph-capture": captured}}
        session: Any = twins.session("jax", precision="float32", **changes)
        return twins.trained(session, pool, 5)

    plain, captured = open_session(False), open_session(True)
    for session in (plain, captured):
        session.wait()
    np.testing.assert_allclose(captured.answers(), plain.answers(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(captured.losses(), plain.losses(), rtol=1e-5)
    assert not np.allclose(*captured.answers()[:2])
    np.testing.assert_allclose(captured.logits(pool[0].values()), captured.answers()[-1], rtol=1e-6)
    assert captured.settings()["constant-weights"] == weights_held
    assert (captured.export().step, plain.export().step) == (5, 5)

    def find_addresses() -> list[int]:
        return [array.unsafe_buffer_pointer() for array in captured._buffers]

    before = find_addresses()
    captured.run(4)
    assert find_addresses() == before
    former = captured.logits(pool[1].values())
    captured.assign(weights.randomise(captured.signature(), 9))
    captured.run(1)
    np.testing.assert_allclose(captured.answers()[-1], captured.logits(pool[1].values()), rtol=1e-6)
    assert not np.allclose(captured.answers()[-1], former)


def test_a_missing_output_that_no_fold_explains_is_a_mismatch(clean: Records) -> None:
    lacking = {
        precision: {name: array for name, array in arrays.items() if not name.endswith("activation/pool")}
        for precision, arrays in clean.items()
    }
    assert not judge(clean, lacking).passed


def test_programs_compiled_ahead_of_time_answer_the_same_in_a_new_session(
    clean: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    twice = [record("jax", "ahead-of-time", tmp_path)["float64"] for _ in range(2)]
    assert len(list((tmp_path / "samestep-executables").iterdir())) == 2 * len(SIZES)
    assert judge(clean, record("jax", "ahead-of-time", tmp_path)).passed
    for name, array in twice[0].items():
        assert np.array_equal(array, twice[1][name])
