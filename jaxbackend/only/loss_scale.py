"""Dynamic loss scaling of float16, as torch.amp.GradScaler does it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxbackend.precision import BACKOFF_FACTOR, GROWTH_FACTOR, GROWTH_INTERVAL, Policy


class LossScale(NamedTuple):
    """The scale halves and the step is skipped on overflow. The scale doubles after 2,000 finite steps.

    Sources: torch.amp.GradScaler, and Micikevicius et al. 2018, Mixed Precision Training.
    """

    scale: jax.Array
    good_steps: jax.Array

    @classmethod
    def initial(cls, policy: Policy) -> "LossScale | None":
        """Return the first state, None where the policy does not scale."""
        return None if policy.loss_scale is None else cls(jnp.float32(policy.loss_scale), jnp.int32(0))

    def update(self, finite: jax.Array) -> "LossScale":
        """Return the state after a step with `finite` gradients or not."""
        good = jnp.where(finite, self.good_steps + 1, 0)
        grow = good == GROWTH_INTERVAL
        grown = self.scale * GROWTH_FACTOR
        scale = jnp.where(grow & jnp.isfinite(grown), grown, self.scale)  # as torch, never past float32
        return LossScale(jnp.where(finite, scale, self.scale * BACKOFF_FACTOR), jnp.where(grow, 0, good))


def scale_loss(loss: jax.Array, scaling: LossScale | None) -> jax.Array:
    """Return the loss times the scale."""
    return loss if scaling is None else loss * scaling.scale


def unscale(gradients: Any, scaling: LossScale | None) -> tuple[Any, jax.Array | None]:
    """Return the gradients of the unscaled loss and whether all are finite (None where nothing is scaled)."""
    if scaling is None:
        return gradients, None
    gradients = jax.tree.map(lambda g: g * (1.0 / scaling.scale), gradients)
    return gradients, jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]).all()
