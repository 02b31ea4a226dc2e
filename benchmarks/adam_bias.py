"""How far is one Adam update in float32 from the same in float64: optax's own rule against samestep's and torch's?

python benchmarks/adam_bias.py
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from compare.base import workloads
from jaxbackend import optim

SPEC = workloads.get("digits-cnn").optimizer
STEPS = 3


def optax_updates(rule: optax.GradientTransformation, gradients: list[Any], dtype: Any) -> list[Any]:
    found: list[Any] = []
    with jax.enable_x64(dtype == np.float64):
        parameters = jnp.zeros(gradients[0].shape, dtype)
        state = rule.init(parameters)
        update: Callable[..., Any] = jax.jit(rule.update)
        for gradient in gradients:
            step, state = update(jnp.asarray(gradient, dtype), state, parameters)
            found.append(np.asarray(step))
    return found


def torch_updates(gradients: list[Any], dtype: torch.dtype) -> list[Any]:
    found: list[Any] = []
    parameter = torch.zeros(gradients[0].shape, dtype=dtype, requires_grad=True)
    rule = torch.optim.Adam([parameter], lr=SPEC.learning_rate, betas=SPEC.betas, eps=SPEC.epsilon)
    for gradient in gradients:
        with torch.no_grad():
            parameter.zero_()  # the parameter after the step is then the update, without the rounding of an addition
        parameter.grad = torch.from_numpy(gradient).to(dtype)
        rule.step()
        found.append(parameter.detach().numpy().copy())
    return found


def main() -> None:
    random = np.random.default_rng(0)
    gradients = [random.standard_normal(10_000).astype(np.float32).astype(np.float64) for _ in range(STEPS)]
    reference = torch_updates(gradients, torch.float64)
    stock = optax.adam(SPEC.learning_rate, *SPEC.betas, eps=SPEC.epsilon)
    ours = optim.build(SPEC)
    for name, updates in (
        ("optax.adam, float32", optax_updates(stock, gradients, np.float32)),
        ("samestep's JAX rule, float32", optax_updates(ours, gradients, np.float32)),
        ("torch.optim.Adam, float32", torch_updates(gradients, torch.float32)),
        ("optax.adam, float64", optax_updates(stock, gradients, np.float64)),
        ("samestep's JAX rule, float64", optax_updates(ours, gradients, np.float64)),
    ):
        errors = [np.linalg.norm(u - r) / np.linalg.norm(r) for u, r in zip(updates, reference, strict=True)]
        print(f"{name:30} error of the update at steps 1 to {STEPS}: {', '.join(f'{error:.1e}' for error in errors)}")


if __name__ == "__main__":
    main()
