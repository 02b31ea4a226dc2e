"""Update rules, in torch's conventions."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from compare.interface import Arrays
from compare.workloads import OptimizerSpec
from jaxbackend import layout


def build(spec: OptimizerSpec) -> optax.GradientTransformation:
    """Return the update rule of a workload."""
    if spec.name == "sgd":
        return optax.sgd(spec.learning_rate, momentum=spec.momentum, nesterov=spec.nesterov)
    return optax.chain(_scale_by_adam(spec), optax.scale_by_learning_rate(spec.learning_rate))


def export(state: Any) -> Arrays:
    """Return the optimizer's moments by `KIND/PARAMETER` in neutral layout."""
    arrays: Arrays = {}
    for kind, attribute in (("momentum", "trace"), ("first_moment", "mu"), ("second_moment", "nu")):
        moments = optax.tree_utils.tree_get(state, attribute)
        if moments is not None:
            arrays |= {f"{kind}/{name}": array for name, array in layout.export(moments).items()}
    return arrays


def _scale_by_adam(spec: OptimizerSpec) -> optax.GradientTransformation:
    # optax.scale_by_adam computes 1 - beta ** t in float32, where beta close to 1 costs up to four digits; torch
    # computes it in double. -expm1(t log beta) keeps all digits, and the float32 twins agree to rounding.
    first, second = spec.betas

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = optax.tree_utils.tree_zeros_like
        return optax.ScaleByAdamState(count=jnp.int32(0), mu=zeros(params), nu=zeros(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        mu = optax.tree_utils.tree_update_moment(updates, state.mu, first, 1)
        nu = optax.tree_utils.tree_update_moment_per_elem_norm(updates, state.nu, second, 2)
        count = state.count + 1
        unbias_first, unbias_second = (-jnp.expm1(count * math.log(beta)) for beta in spec.betas)
        steps = jax.tree.map(lambda m, v: (m / unbias_first) / (jnp.sqrt(v / unbias_second) + spec.epsilon), mu, nu)
        return steps, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)
