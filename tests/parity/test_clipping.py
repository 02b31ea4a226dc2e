"""Clipping by global norm: both backends against NumPy, in updates over several steps and in whole training steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import jaxbackend.optim
import jaxbackend.precision
import torchbackend.layout
import torchbackend.optim
from compare.base import workloads
from compare.base.interface import Array, Arrays, Session
from compare.base.workloads import OptimizerSpec
from tests.parity import twins

RANDOM = np.random.default_rng(0)
SHAPES = {"a": (30,), "b": (4, 5), "c": (1,)}
START: Arrays = {name: RANDOM.standard_normal(shape) for name, shape in SHAPES.items()}
# Their norms are about 7. Those of the second step are below the limit, and so small that the 1e-6 would show.
SIZES = (1.0, 1e-4, 0.3, 2.0)
GRADIENTS: list[Arrays] = [
    {name: size * RANDOM.standard_normal(shape) for name, shape in SHAPES.items()} for size in SIZES
]
LIMIT = 1.5
SPECS = {
    "sgd": OptimizerSpec("sgd", 0.1, clip_norm=LIMIT),
    "nesterov, decay": OptimizerSpec("sgd", 0.1, momentum=0.9, nesterov=True, weight_decay=0.1, clip_norm=LIMIT),
    "nesterov, not clipped": OptimizerSpec("sgd", 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
}
Stepper = Callable[[OptimizerSpec], list[Arrays]]


def jax_steps(spec: OptimizerSpec) -> list[Arrays]:
    found: list[Arrays] = []
    with jaxbackend.precision.policy("float64", "cpu").scope():
        values: Any = {name: jnp.asarray(array) for name, array in START.items()}
        rule = jaxbackend.optim.build(spec)
        state = rule.init(values)
        for gradients in GRADIENTS:
            updates, state = rule.update({name: jnp.asarray(array) for name, array in gradients.items()}, state, values)
            values = optax.apply_updates(values, updates)
            found.append({name: np.asarray(value) for name, value in values.items()})
    return found


def torch_steps(spec: OptimizerSpec, *, fused: bool = False) -> list[Arrays]:
    values = {name: torch.nn.Parameter(torch.from_numpy(array.copy())) for name, array in START.items()}
    model = torch.nn.ParameterList(values.values())
    leaves = torchbackend.layout.leaves(model, torchbackend.layout.names(model))
    rule = torchbackend.optim.build(spec, leaves, fused=fused, capturable=False)
    found: list[Arrays] = []
    for gradients in GRADIENTS:
        for name, value in values.items():
            value.grad = torch.from_numpy(gradients[name].copy())
        if spec.clip_norm is not None:
            torchbackend.optim.clip(rule, spec.clip_norm)
        rule.step()
        found.append({name: value.detach().numpy().copy() for name, value in values.items()})
    return found


def factor(gradients: Arrays, limit: float | None) -> float:
    norm = np.sqrt(sum(float((array**2).sum()) for array in gradients.values()))
    return 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))


@pytest.mark.parametrize(
    "stepper", [jax_steps, torch_steps, partial(torch_steps, fused=True)], ids=["jax", "torch", "torch-fused"]
)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_all_gradients_are_scaled_by_one_factor_before_decay_and_momentum(spec: OptimizerSpec, stepper: Stepper):
    values, buffers = dict(START), {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for found, gradients in zip(stepper(spec), GRADIENTS, strict=True):
        scale = factor(gradients, spec.clip_norm)
        for name, value in values.items():
            decayed = scale * gradients[name] + spec.weight_decay * value
            buffers[name] = spec.momentum * buffers[name] + decayed
            step = decayed + spec.momentum * buffers[name] if spec.nesterov else buffers[name]
            values[name] = value - spec.learning_rate * step
            np.testing.assert_allclose(found[name], values[name], rtol=1e-13, atol=1e-14, err_msg=name)


def test_optax_s_own_clipping_leaves_out_the_millionth():
    gradient = GRADIENTS[0]["a"]
    with jaxbackend.precision.policy("float64", "cpu").scope():

        def clipped(rule: optax.GradientTransformation) -> Array:
            return np.asarray(rule.update(jnp.asarray(gradient), rule.init(gradient))[0])

        ours, theirs = clipped(jaxbackend.optim.clip(LIMIT)), clipped(optax.clip_by_global_norm(LIMIT))
    norm = np.linalg.norm(gradient)
    np.testing.assert_allclose(ours / theirs, norm / (norm + 1e-6), rtol=1e-13)


def opened(patch: pytest.MonkeyPatch, backend: str, limit: float, **changes: Any) -> Session:
    """Return a session of digits-cnn with plain SGD. Its update is the learning rate times the clipped gradient."""
    real = workloads.get("digits-cnn")
    rule = OptimizerSpec("sgd", 0.5, clip_norm=limit)
    narrow = replace(real, optimizer=rule, model=replace(real.model, arguments={"features": 2}))
    patch.setattr(workloads, "WORKLOADS", {"digits-cnn": narrow})
    return twins.session(backend, **changes)


def named(found: Arrays, kind: str) -> Arrays:
    return {name.removeprefix(kind): array for name, array in found.items() if name.startswith(kind)}


@pytest.mark.parametrize("backend", twins.BOTH)
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float64", 1e-13), ("float32", 1e-6), ("bfloat16", 1e-6), ("float16", 1e-6)]
)
def test_a_step_clips_the_gradients_of_the_unscaled_loss(
    backend: str, precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
):
    session = opened(monkeypatch, backend, limit=0.1, precision=precision, loss_scale=2.0**10)
    for batch in twins.batches("digits-cnn", 2):
        found = session.inspect(batch)
        gradients, updates = named(found, "gradient/"), named(found, "update/")
        scale = factor(gradients, 0.1)
        assert scale < 0.5  # an unclipped norm, so the gradients told are those before clipping
        for name, update in updates.items():
            np.testing.assert_allclose(update, -0.5 * scale * gradients[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("backend", twins.BOTH)
def test_a_float16_step_that_overflows_is_skipped_whatever_its_norm(backend: str, monkeypatch: pytest.MonkeyPatch):
    session = opened(monkeypatch, backend, limit=0.1, precision="float16", loss_scale=2.0**24)
    (batch,) = twins.batches("digits-cnn", 1)
    found = session.inspect(batch)
    assert not all(np.isfinite(array).all() for array in named(found, "gradient/").values())
    assert not any(array.any() for array in named(found, "update/").values())
