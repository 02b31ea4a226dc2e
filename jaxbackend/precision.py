"""Precisions: which dtype each part of a training step uses, and float16's dynamic loss scaling."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from compare.base.interface import Refused
from compare.base.precisions import PRECISIONS

# GradScaler's defaults (torch.amp.GradScaler), for both sides. RunSpec has the initial scale.
GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL = 2.0, 0.5, 2000


@dataclass(frozen=True)
class Policy:
    """The dtypes of one precision.

    Attributes:
        parameter_dtype: dtype of parameters, buffers, optimizer state, batch-norm statistics and the loss.
        compute_dtype: dtype of convolutions and dense layers.
        tf32: whether float32 products may round their inputs to TF32 (None where the device has no TF32).
        loss_scale: the initial factor of the loss, None where the loss is not scaled.
        synchronised: whether batch norm takes its statistics over all devices.
        fuses_batch_norm: whether 1x1 convolutions take batch norm's memory passes along (`jaxbackend.fused`).
    """

    parameter_dtype: Any
    compute_dtype: Any
    tf32: bool | None
    loss_scale: float | None
    synchronised: bool = False
    fuses_batch_norm: bool = False

    @contextmanager
    def scope(self) -> Generator[None]:
        """Set the framework's global precision switches to this policy while the context lasts."""
        products = "tensorfloat32" if self.tf32 else "highest"
        with jax.enable_x64(self.parameter_dtype == jnp.float64), jax.default_matmul_precision(products):
            yield


def policy(precision: str, device: str, loss_scale: float = 65536.0) -> Policy:
    """Return the policy of a precision by name. `loss_scale` is the initial one of float16.

    Raises:
        Refused: the device does not have this precision.
    """
    facts = PRECISIONS[precision]
    if not facts.runs_on(device):
        raise Refused(f"precision {precision} needs --device {facts.required_device}")
    return Policy(
        parameter_dtype=getattr(jnp, facts.storage_dtype),
        compute_dtype=getattr(jnp, facts.compute_dtype),
        tf32=None if device == "cpu" else precision == "tf32",
        loss_scale=loss_scale if facts.has_loss_scale else None,
    )


def uses_tf32() -> bool:
    """Tell whether float32 products round their inputs to TF32 now."""
    return jax.config.values["jax_default_matmul_precision"] == "tensorfloat32"
