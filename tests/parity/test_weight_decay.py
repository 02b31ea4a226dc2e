"""Weight decay over several steps, before or after the moments: both backends against NumPy."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import optax
import pytest
import torch
from flax import nnx

import jaxbackend.layers
import jaxbackend.layout
import jaxbackend.optim
import jaxbackend.precision
import torchbackend.layers
import torchbackend.layout
import torchbackend.optim
import torchbackend.precision
from compare.base.interface import Array, Arrays
from compare.base.workloads import OptimizerSpec

SHAPES = {"0.kernel": (3, 4), "0.bias": (4,), "1.scale": (4,), "1.bias": (4,), "2.gamma": (4,)}
RANDOM = np.random.default_rng(0)
START: Arrays = {name: RANDOM.standard_normal(shape) for name, shape in SHAPES.items()}
GRADIENTS: list[Arrays] = [{name: RANDOM.standard_normal(shape) for name, shape in SHAPES.items()} for _ in range(4)]
Stepper = Callable[[OptimizerSpec], list[Arrays]]


def jax_steps(spec: OptimizerSpec) -> list[Arrays]:
    """Return the parameters of a dense layer, a layer norm and a layer scale after each step."""
    policy, found = jaxbackend.precision.policy("float64", "cpu"), []
    layers = jaxbackend.layers
    with policy.scope():
        model = nnx.Sequential(
            layers.Dense(3, 4, policy=policy), layers.LayerNorm(4, policy=policy), layers.LayerScale(4, policy=policy)
        )
        rule, empty = jaxbackend.optim.build(spec), nnx.to_pure_dict(nnx.state(model, nnx.Param))

        def state(arrays: Arrays) -> Any:
            values = {f"layers.{name}": array for name, array in arrays.items()}
            return jaxbackend.layout.assign(empty, None, values)

        parameters = state(START)
        moments = rule.init(parameters)
        for gradients in GRADIENTS:
            updates, moments = rule.update(state(gradients), moments, parameters)
            parameters = optax.apply_updates(parameters, updates)
            exported = jaxbackend.layout.fetch(jaxbackend.layout.export(parameters, None))
            found.append({name: exported[f"layers.{name}"] for name in SHAPES})
    return found


def torch_steps(spec: OptimizerSpec, *, fused: bool = False) -> list[Arrays]:
    """Return the parameters of a dense layer, a layer norm and a layer scale after each step."""
    policy, layers, found = torchbackend.precision.policy("float64", "cpu"), torchbackend.layers, []
    model = torch.nn.Sequential(
        layers.Dense(3, 4, policy=policy), layers.LayerNorm(4, policy=policy), layers.LayerScale(4, policy=policy)
    )
    leaves = torchbackend.layout.leaves(model, torchbackend.layout.names(model))
    torchbackend.layout.assign(leaves, START)
    rule = torchbackend.optim.build(spec, leaves, fused=fused, capturable=False)
    for gradients in GRADIENTS:
        for leaf in leaves:
            to_torch = np.argsort(leaf.axes)
            leaf.tensor.grad = torch.from_numpy(gradients[leaf.name].transpose(to_torch).copy())
        rule.step()
        now = torchbackend.layout.export({leaf.name: leaf.tensor for leaf in leaves}, leaves)
        found.append(torchbackend.layout.fetch(now))
    return found


def sgd_in_numpy(spec: OptimizerSpec, decay: float, start: Array, gradients: list[Array]) -> list[Array]:
    value, buffer, found = start, np.zeros_like(start), []
    for gradient in gradients:
        decayed = gradient + decay * value
        buffer = spec.momentum * buffer + decayed
        value = value - spec.learning_rate * (decayed + spec.momentum * buffer if spec.nesterov else buffer)
        found.append(value)
    return found


def adam_in_numpy(spec: OptimizerSpec, decay: float, start: Array, gradients: list[Array]) -> list[Array]:
    value, first, second, found = start, np.zeros_like(start), np.zeros_like(start), []
    for step, gradient in enumerate(gradients, 1):
        decayed = gradient if spec.decoupled else gradient + decay * value
        first = spec.betas[0] * first + (1 - spec.betas[0]) * decayed
        second = spec.betas[1] * second + (1 - spec.betas[1]) * decayed**2
        mean, variance = first / (1 - spec.betas[0] ** step), second / (1 - spec.betas[1] ** step)
        change = mean / (np.sqrt(variance) + spec.epsilon)
        value = value - spec.learning_rate * (change + decay * value if spec.decoupled else change)
        found.append(value)
    return found


SPECS = {
    "sgd": OptimizerSpec("sgd", 0.05, weight_decay=0.1),
    "heavy ball": OptimizerSpec("sgd", 0.05, momentum=0.9, weight_decay=0.1),
    "nesterov": OptimizerSpec("sgd", 0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "nesterov, kernels": OptimizerSpec(
        "sgd", 0.05, momentum=0.9, nesterov=True, weight_decay=0.1, decay_kernels_only=True
    ),
    "adam": OptimizerSpec("adam", 0.05, weight_decay=0.1),
    "adam, kernels": OptimizerSpec("adam", 0.05, weight_decay=0.1, decay_kernels_only=True),
    "adamw": OptimizerSpec("adam", 0.05, weight_decay=0.1, decoupled=True),
    "adamw, kernels": OptimizerSpec("adam", 0.05, weight_decay=0.1, decoupled=True, decay_kernels_only=True),
}


@pytest.mark.parametrize(
    "stepper", [jax_steps, torch_steps, partial(torch_steps, fused=True)], ids=["jax", "torch", "torch-fused"]
)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_weight_decay_is_added_to_the_gradient_or_if_decoupled_to_the_step(spec: OptimizerSpec, stepper: Stepper):
    rule, found = sgd_in_numpy if spec.name == "sgd" else adam_in_numpy, stepper(spec)
    for name in SHAPES:
        decay = 0.0 if spec.decay_kernels_only and not name.endswith("kernel") else spec.weight_decay
        expected = rule(spec, decay, START[name], [gradients[name] for gradients in GRADIENTS])
        for step, value in enumerate(expected):
            np.testing.assert_allclose(found[step][name], value, rtol=1e-12, err_msg=f"{name} at step {step}")


def test_decoupled_decay_is_adams_alone() -> None:
    with pytest.raises(ValueError, match="not for sgd"):
        OptimizerSpec("sgd", 0.1, weight_decay=0.1, decoupled=True)


def test_kernels_are_told_by_the_last_part_of_their_names():
    spec = OptimizerSpec("sgd", 0.05, weight_decay=0.1, decay_kernels_only=True)
    names = ("conv.kernel", "kernel", "kernel_norm.scale", "norm.kernels")
    assert [spec.decays(name) for name in names] == [True, True, False, False]
