"""Precisions: which dtype each part of a training step uses, and float16's dynamic loss scaling."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from compare.base.interface import Refused

# GradScaler's defaults (torch.amp.GradScaler), which both sides use; its initial scale is RunSpec's.
GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL = 2.0, 0.5, 2000


@dataclass(frozen=True)
class Policy:
    """The dtypes of one precision.

    Attributes:
        parameter_dtype: of parameters, buffers, optimizer state, batch-norm statistics and the loss.
        compute_dtype: of convolutions and dense layers.
        tf32: whether float32 products may round their inputs to TF32 (None where the device has no TF32).
        loss_scale: what the loss is first multiplied by, None where it is not scaled.
        over: the axis of the devices over which batch norm takes its statistics, None for a device's own.
    """

    parameter_dtype: Any
    compute_dtype: Any
    tf32: bool | None
    loss_scale: float | None
    over: str | None = None

    @contextmanager
    def scope(self) -> Generator[None]:
        """Make the framework's global precision switches this policy's while the context lasts."""
        products = "tensorfloat32" if self.tf32 else "highest"
        with jax.enable_x64(self.parameter_dtype == jnp.float64), jax.default_matmul_precision(products):
            yield


def policy(precision: str, device: str, loss_scale: float = 65536.0) -> Policy:
    """Return the policy of a precision by name; `loss_scale` is float16's first one.

    Raises:
        Refused: for a precision that the device does not have.
    """
    if precision == "tf32" and device == "cpu":
        raise Refused("precision tf32 needs --device cuda")
    tf32 = None if device == "cpu" else precision == "tf32"
    if precision == "float64":
        return Policy(jnp.float64, jnp.float64, tf32, loss_scale=None)
    if precision in ("float32", "tf32"):
        return Policy(jnp.float32, jnp.float32, tf32, loss_scale=None)
    if precision == "bfloat16":
        return Policy(jnp.float32, jnp.bfloat16, tf32, loss_scale=None)
    return Policy(jnp.float32, jnp.float16, tf32, loss_scale=loss_scale)


class LossScale(NamedTuple):
    """Dynamic loss scaling by GradScaler's rule: halve and skip on overflow, double after 2,000 finite steps.

    Source: torch.amp.GradScaler; Micikevicius et al. 2018, Mixed Precision Training.
    """

    scale: jax.Array
    good_steps: jax.Array

    @classmethod
    def initial(cls, policy: Policy) -> "LossScale | None":
        """Return the first state, None where the policy does not scale."""
        return None if policy.loss_scale is None else cls(jnp.float32(policy.loss_scale), jnp.int32(0))

    def update(self, finite: jax.Array) -> "LossScale":
        """Return the state after a step whose gradients were all finite or not."""
        good = jnp.where(finite, self.good_steps + 1, 0)
        grow = good == GROWTH_INTERVAL
        grown = self.scale * GROWTH_FACTOR
        kept = jnp.where(grow & jnp.isfinite(grown), grown, self.scale)  # as torch, never past float32
        return LossScale(jnp.where(finite, kept, self.scale * BACKOFF_FACTOR), jnp.where(grow, 0, good))


def scaled(loss: jax.Array, scaling: LossScale | None) -> jax.Array:
    """Return the loss times the scale."""
    return loss if scaling is None else loss * scaling.scale


def unscaled(gradients: Any, scaling: LossScale | None) -> tuple[Any, jax.Array | None]:
    """Return the gradients of the unscaled loss and whether all are finite (None where nothing is scaled)."""
    if scaling is None:
        return gradients, None
    gradients = jax.tree.map(lambda g: g * (1.0 / scaling.scale), gradients)
    return gradients, jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]).all()
