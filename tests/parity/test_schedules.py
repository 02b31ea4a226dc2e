"""Learning-rate schedules: both backends against NumPy at every step, and training steps that obey them."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxbackend.optim
import torchbackend.optim
from compare.agreement import effective_settings
from compare.base import workloads
from compare.base.interface import Arrays, Session
from compare.base.workloads import OptimizerSpec, Schedule
from tests.parity import twins

RATE = 0.3
SCHEDULES = {
    "constant": Schedule(),
    "constant, warm-up": Schedule(warmup=3),
    "step": Schedule("step", milestones=(2, 5), factor=0.2),
    "step, warm-up": Schedule("step", warmup=3, milestones=(2, 5), factor=0.2),
    "cosine": Schedule("cosine", total=7),
    "cosine, warm-up": Schedule("cosine", warmup=3, total=7),
}
STEPS = 7 + 3
EVERY = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
BOTH = pytest.mark.parametrize("backend", twins.BOTH)


def expected(schedule: Schedule) -> list[float]:
    """Return the learning rate of each of `STEPS` steps by the papers, rounded to float32 unless constant."""
    rates: list[float] = []
    for step in range(STEPS):
        rate = RATE
        if schedule.name == "step":
            for milestone in schedule.milestones:
                rate = rate * schedule.factor if step >= milestone else rate
        if schedule.name == "cosine" and step >= schedule.total:
            rate = 0.0
        elif schedule.name == "cosine" and step > schedule.warmup:
            rate *= (1 + math.cos(math.pi * (step - schedule.warmup) / (schedule.total - schedule.warmup))) / 2
        if step < schedule.warmup:
            rate *= (step + 1) / schedule.warmup
        rates.append(rate if schedule.is_constant else float(np.float32(rate)))
    return rates


@EVERY
def test_the_learning_rate_of_every_step_is_numpy_s(schedule: Schedule):
    spec, wanted = OptimizerSpec("sgd", RATE, schedule=schedule), expected(schedule)
    steps = torch.arange(STEPS, dtype=torch.float64)
    theirs = [float(torchbackend.optim.learning_rate(spec, step)) for step in steps]
    np.testing.assert_allclose(theirs, wanted, rtol=1e-14, atol=1e-17)
    with jax.enable_x64(True):
        compiled = jax.jit(lambda step: jaxbackend.optim.learning_rate(spec, step) * jnp.float64(1))
        ours = [float(compiled(jnp.int32(step))) for step in range(STEPS)]
    np.testing.assert_allclose(ours, wanted, rtol=1e-14, atol=1e-17)


def test_float32_steps_have_the_learning_rate_to_float32_s_last_digits():
    spec = OptimizerSpec("sgd", RATE, schedule=SCHEDULES["cosine, warm-up"])
    ours = [float(jaxbackend.optim.learning_rate(spec, jnp.int32(step))) for step in range(STEPS)]
    np.testing.assert_allclose(ours, expected(spec.schedule), rtol=3e-7, atol=1e-8 * RATE)


@BOTH
def test_the_end_of_a_long_cosine_keeps_its_digits_in_float32(backend: str):
    total = 100_000
    spec = OptimizerSpec("sgd", RATE, schedule=Schedule("cosine", warmup=20, total=total))
    for step in (30, total // 2, total - 1000, total - 10, total - 1):
        wanted = RATE * math.sin(math.pi / 2 * (total - step) / (total - 20)) ** 2
        if backend == "jax":
            found = jaxbackend.optim.learning_rate(spec, jnp.int32(step))
        else:
            found = torchbackend.optim.learning_rate(spec, torch.tensor(step, dtype=torch.float64))
        np.testing.assert_allclose(float(found), wanted, rtol=1e-6)


def test_the_cosine_has_its_maximum_after_warm_up_its_half_midway_and_zero_at_the_end():
    wanted = np.array(expected(SCHEDULES["cosine, warm-up"])) / RATE
    np.testing.assert_allclose(wanted[[0, 1, 2, 3, 5, 7, 8]], [1 / 3, 2 / 3, 1, 1, 0.5, 0, 0], atol=1e-15)


def scheduled(monkeypatch: pytest.MonkeyPatch, schedule: Schedule) -> None:
    """Give digits-cnn plain SGD. Its update is the learning rate times the gradient."""
    real = workloads.get("digits-cnn")
    optimizer = OptimizerSpec("sgd", RATE, schedule=schedule)
    changed = replace(real, optimizer=optimizer, model=replace(real.model, arguments={"features": 2}))
    monkeypatch.setattr(workloads, "WORKLOADS", {"digits-cnn": changed})


def check_rate(found: Arrays, rate: float, *, rounding: float = 1e-15) -> None:
    for name, gradient in found.items():
        if name.startswith("gradient/"):
            update = found[name.replace("gradient/", "update/")]
            np.testing.assert_allclose(update, -rate * gradient, atol=rounding, err_msg=name)
            assert np.abs(gradient).max() > 100 * rounding, name


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("constant", [0]),
        ("constant, warm-up", [0, 2, 3]),
        ("step, warm-up", [0, 1, 2, 3, 4, 5]),
        ("cosine", [0, 3, 6, 7]),
        ("cosine, warm-up", [0, 2, 3, 5, 6, 7]),
    ],
)
def test_effective_settings_have_the_learning_rates_of_the_steps_at_which_a_schedule_turns(
    name: str, turns: list[int], monkeypatch: pytest.MonkeyPatch
):
    schedule = SCHEDULES[name]
    scheduled(monkeypatch, schedule)
    found = {backend: fed(backend).settings() for backend in twins.BOTH}
    for each in found.values():
        assert [*each["learning_rates"]] == [str(step) for step in turns]
        wanted = [expected(schedule)[step] for step in turns]
        np.testing.assert_allclose([*each["learning_rates"].values()], wanted, rtol=5e-6)
    assert effective_settings.describe_differences(found["torch"], found["jax"]) is None
    for module in (jaxbackend.optim, torchbackend.optim):  # a step later, which no step before the turn shows
        right = module.learning_rate
        monkeypatch.setattr(
            module, "learning_rate", lambda spec, step, right=right: right(spec, step + (step > schedule.warmup))
        )
        gate = effective_settings.judge(fed("torch").settings(), fed("jax").settings())
        assert (gate.passed, gate.worst_tensor) == (
            (True, None) if name[:8] == "constant" else (False, "learning_rates")
        )
        monkeypatch.setattr(module, "learning_rate", right)


def fed(backend: str) -> Session:
    session = twins.session(backend)
    session.feed(twins.batches("digits-cnn", 1))
    return session


@BOTH
@pytest.mark.parametrize("name", ["step, warm-up", "cosine, warm-up"])
def test_training_steps_have_the_learning_rate_of_their_number(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
):
    scheduled(monkeypatch, SCHEDULES[name])
    session, (batch,) = twins.session(backend), twins.batches("digits-cnn", 1)
    for rate in expected(SCHEDULES[name]):
        check_rate(session.inspect(batch), rate)


@pytest.mark.parametrize(
    ("backend", "tuning"), [("jax", "stock"), ("jax", "compiled+steps-per-dispatch=3"), ("torch", "stock")]
)
def test_run_obeys_the_schedule_as_inspect_does_and_assigning_starts_it_again(
    backend: str, tuning: str, monkeypatch: pytest.MonkeyPatch
):
    scheduled(monkeypatch, SCHEDULES["step, warm-up"])
    batches, inspected = twins.batches("digits-cnn", 3), twins.session(backend)
    for step in range(STEPS):
        inspected.inspect(batches[step % 3])
    wanted, session = inspected.export().parameters, twins.session(backend, tuning=tuning)
    start = session.export().parameters
    for _ in range(2):
        session.assign(start)
        twins.trained(session, batches, STEPS)
        for name, array in session.export().parameters.items():
            np.testing.assert_allclose(array, wanted[name], rtol=0, atol=1e-13, err_msg=name)


@BOTH
def test_a_float16_step_whose_update_is_skipped_counts_as_a_step(backend: str, monkeypatch: pytest.MonkeyPatch):
    schedule = SCHEDULES["constant, warm-up"]
    scheduled(monkeypatch, schedule)
    session = twins.session(backend, precision="float16", loss_scale=2.0**17)  # overflows twice
    (batch,) = twins.batches("digits-cnn", 1)
    taken: list[bool] = []
    for rate in expected(schedule):
        found = session.inspect(batch)
        taken.append(all(np.isfinite(array).all() for array in found.values()))
        if taken[-1]:
            check_rate(found, rate, rounding=1e-6)
        else:
            assert not any(array.any() for name, array in found.items() if name.startswith("update/"))
    assert taken[0] is False
    assert taken.index(True) < schedule.warmup
