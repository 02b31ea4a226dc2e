"""Update rules, in torch's conventions."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from compare.base.interface import Arrays
from compare.base.names import join_path
from compare.base.workloads import OptimizerSpec
from jaxbackend import layout


def build(spec: OptimizerSpec, leaves: layout.Leaves | None = None) -> optax.GradientTransformationExtraArgs:
    """Return the update rule of a workload. Its `update` takes the number of the training step as `step`.

    `leaves` are those of a user's model.
    """
    rules = [_scale_by_adam(spec)]
    if spec.name == "sgd":
        rules = [optax.trace(spec.momentum, spec.nesterov)] if spec.momentum else []
    if spec.weight_decay:
        mask = partial(_decays, spec, leaves) if spec.decay_kernels_only else None
        decay = optax.add_decayed_weights(spec.weight_decay, mask)
        rules.insert(len(rules) if spec.decoupled else 0, decay)
    if spec.clip_norm is not None:
        rules.insert(0, clip(spec.clip_norm))
    return optax.chain(*rules, _descend(spec))


def clip(clip_norm: float) -> optax.GradientTransformation:
    """Return the rule that scales all gradients down to a common norm (`compare.base.workloads.OptimizerSpec`)."""

    def scale(gradients: Any, params: Any) -> Any:
        del params
        # Not optax.clip_by_global_norm: it leaves out the 1e-6.
        factor = jnp.minimum(clip_norm / (optax.tree.norm(gradients) + 1e-6), 1.0)
        return jax.tree.map(lambda gradient: gradient * factor, gradients)

    return optax.stateless(scale)


def learning_rate(spec: OptimizerSpec, step: Any) -> Any:
    """Return the learning rate of a step, counted from 0 (`compare.base.workloads.Schedule`)."""
    if spec.schedule.is_constant:
        return spec.learning_rate
    schedule, rate, step = spec.schedule, spec.learning_rate, step * 1.0  # a float64 where x64 is on, unlike int32 / 20
    if schedule.warmup:
        rate *= jnp.minimum(1.0, (step + 1) / schedule.warmup)
    if schedule.name == "step":
        rate *= schedule.factor ** sum((step >= milestone) * 1.0 for milestone in schedule.milestones)
    if schedule.name == "cosine":
        left = jnp.clip((schedule.total - step) / max(1, schedule.total - schedule.warmup), 0.0, 1.0)
        rate *= jnp.square(jnp.sin(math.pi / 2 * left))  # (1 + cos(pi * (1 - left))) / 2, which cancels in the end
    return jnp.float32(rate)


def rates(spec: OptimizerSpec) -> dict[str, float]:
    """Return the learning rates, to six digits, of the steps at which the schedule turns (`Schedule.turns`)."""
    exact = {step: learning_rate(spec, jnp.int32(step)) for step in spec.schedule.turns}
    return {str(step): float(f"{float(rate):.6g}") for step, rate in exact.items()}


def export(optimizer: Any, leaves: layout.Leaves | None) -> Arrays:
    """Return the optimizer's moments by `KIND/PARAMETER` in neutral layout."""
    arrays: Arrays = {}
    for kind, attribute in (("momentum", "trace"), ("first_moment", "mu"), ("second_moment", "nu")):
        moments = optax.tree_utils.tree_get(optimizer, attribute)
        if moments is not None:
            exported = layout.fetch(layout.export(moments, leaves))
            arrays |= {f"{kind}/{name}": array for name, array in exported.items()}
    return arrays


def _scale_by_adam(spec: OptimizerSpec) -> optax.GradientTransformation:
    # optax.scale_by_adam computes 1 - beta ** t in float32, which loses up to four digits for a beta close to 1. Torch
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
        first_total, second_total = (_total_weight(beta, count) for beta in spec.betas)
        steps = jax.tree.map(lambda m, v: (m / first_total) / _root(v / second_total, spec.epsilon), mu, nu)
        return steps, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def _descend(spec: OptimizerSpec) -> optax.GradientTransformationExtraArgs:
    # Not optax.scale_by_learning_rate: it counts updates, but a float16 step that skips its update counts as a step.
    def init(params: Any) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None, *, step: Any = 0) -> tuple[Any, Any]:
        del params
        rate = learning_rate(spec, step)
        return jax.tree.map(lambda u: -rate * u, updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _total_weight(beta: float, count: jax.Array) -> jax.Array:
    return -jnp.expm1(count * math.log(beta))


def _root(second_moment: jax.Array, epsilon: float) -> jax.Array:
    return jnp.sqrt(second_moment) + epsilon


def _decays(spec: OptimizerSpec, leaves: layout.Leaves | None, parameters: Any) -> Any:
    """Return the same tree with True at every parameter that decays."""
    flat: dict[Any, Any] = traverse_util.flatten_dict(parameters)
    if leaves is None:
        return traverse_util.unflatten_dict({path: spec.decays(join_path(path)) for path in flat})
    return traverse_util.unflatten_dict(
        {path: spec.decays(leaves[path].name if path in leaves else "") for path in flat}
    )
