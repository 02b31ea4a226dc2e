"""Update rules over several steps: both backends against NumPy."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import jaxbackend.optim
import jaxbackend.precision
import torchbackend.layout
import torchbackend.optim
from compare.base.interface import Array
from compare.base.workloads import OptimizerSpec

RANDOM = np.random.default_rng(0)
START = RANDOM.standard_normal(50)
GRADIENTS = [RANDOM.standard_normal(50) for _ in range(5)]
NESTEROV = OptimizerSpec("sgd", 0.05, momentum=0.9, nesterov=True)
HEAVY_BALL = OptimizerSpec("sgd", 0.05, momentum=0.9)
PLAIN = OptimizerSpec("sgd", 0.05)
ADAM = OptimizerSpec("adam", 1e-3)
LARGE_EPSILON = OptimizerSpec("adam", 1e-3, betas=(0.8, 0.95), epsilon=0.1)
Stepper = Callable[[OptimizerSpec, str, int], list[Array]]


def jax_steps(spec: OptimizerSpec, precision: str, steps: int) -> list[Array]:
    policy, found = jaxbackend.precision.policy(precision, "cpu"), []
    with policy.scope():
        value = jnp.asarray(START, policy.parameter_dtype)
        rule = jaxbackend.optim.build(spec)
        state = rule.init(value)
        for gradient in GRADIENTS[:steps]:
            updates, state = rule.update(jnp.asarray(gradient, policy.parameter_dtype), state, value)
            value = optax.apply_updates(value, updates)
            found.append(np.asarray(value))
    return found


def torch_steps(spec: OptimizerSpec, precision: str, steps: int, *, fused: bool = False) -> list[Array]:
    dtype = torch.float64 if precision == "float64" else torch.float32
    value = torch.nn.Parameter(torch.tensor(START, dtype=dtype))
    model = torch.nn.ParameterList([value])
    leaves = torchbackend.layout.leaves(model, torchbackend.layout.names(model))
    rule = torchbackend.optim.build(spec, leaves, fused=fused, capturable=False)
    found = []
    for gradient in GRADIENTS[:steps]:
        value.grad = torch.from_numpy(gradient).to(dtype)
        rule.step()
        found.append(value.detach().numpy().copy())
    return found


def fused_steps(spec: OptimizerSpec, precision: str, steps: int) -> list[Array]:
    return torch_steps(spec, precision, steps, fused=True)


BOTH = pytest.mark.parametrize("stepper", [jax_steps, torch_steps, fused_steps], ids=["jax", "torch", "torch-fused"])


@BOTH
@pytest.mark.parametrize("spec", [NESTEROV, HEAVY_BALL, PLAIN], ids=["nesterov", "heavy-ball", "plain"])
def test_sgd_is_torch_s_form(stepper: Stepper, spec: OptimizerSpec):
    value, buffer = START, np.zeros(50)
    for found, gradient in zip(stepper(spec, "float64", 5), GRADIENTS, strict=True):
        buffer = spec.momentum * buffer + gradient
        value = value - spec.learning_rate * (gradient + spec.momentum * buffer if spec.nesterov else buffer)
        np.testing.assert_allclose(found, value, rtol=1e-13)


def adam_in_numpy(spec: OptimizerSpec, steps: int) -> list[Array]:
    value, first, second, found = START, np.zeros(50), np.zeros(50), []
    for step, gradient in enumerate(GRADIENTS[:steps], 1):
        first = spec.betas[0] * first + (1 - spec.betas[0]) * gradient
        second = spec.betas[1] * second + (1 - spec.betas[1]) * gradient**2
        mean, variance = first / (1 - spec.betas[0] ** step), second / (1 - spec.betas[1] ** step)
        value = value - spec.learning_rate * mean / (np.sqrt(variance) + spec.epsilon)
        found.append(value)
    return found


@BOTH
@pytest.mark.parametrize("spec", [ADAM, LARGE_EPSILON], ids=["defaults", "large-epsilon"])
def test_adam_corrects_both_biases_and_adds_epsilon_outside_the_root(stepper: Stepper, spec: OptimizerSpec):
    for found, expected in zip(stepper(spec, "float64", 5), adam_in_numpy(spec, 5), strict=True):
        np.testing.assert_allclose(found - START, expected - START, rtol=1e-11)


def test_jax_adam_corrects_the_bias_to_float32_s_last_digits_and_optax_s_does_not():
    gradient = jnp.asarray(GRADIENTS[0], jnp.float32)
    exact = GRADIENTS[0] / (np.abs(GRADIENTS[0]) + ADAM.epsilon)

    def error(rule: optax.GradientTransformation) -> float:
        found, _ = rule.update(gradient, rule.init(gradient))
        return float(np.abs(-np.asarray(found, np.float64) / exact - 1).max())

    ours = OptimizerSpec("adam", 1.0)
    assert error(jaxbackend.optim.build(ours)) < 1e-6
    assert error(optax.adam(1.0)) > 1e-6


@pytest.mark.parametrize("spec", [NESTEROV, ADAM], ids=["nesterov", "adam"])
def test_the_rules_agree_in_float32_to_rounding(spec: OptimizerSpec):
    for ours, theirs in zip(jax_steps(spec, "float32", 5), torch_steps(spec, "float32", 5), strict=True):
        assert ours.dtype == theirs.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=3e-7, atol=1e-7)
