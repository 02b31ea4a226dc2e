"""Precisions: which dtype each part of a training step uses, and float16's dynamic loss scaling."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

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
        batch_norm_synchronised: whether batch norm's statistics are taken over all devices.
    """

    parameter_dtype: torch.dtype
    compute_dtype: torch.dtype
    tf32: bool | None
    loss_scale: float | None
    batch_norm_synchronised: bool = False

    @contextmanager
    def scope(self) -> Generator[None]:
        """Make the framework's global precision switches this policy's while the context lasts."""
        switches = () if self.tf32 is None else tf32_switches()
        before = [switch.fp32_precision for switch in switches]
        try:
            for switch in switches:
                switch.fp32_precision = "tf32" if self.tf32 else "ieee"
            yield
        finally:
            for switch, setting in zip(switches, before, strict=True):
                switch.fp32_precision = setting

    def autocast(self, device: str) -> AbstractContextManager[object]:
        """Return the context in which convolutions and dense layers use the compute dtype."""
        if self.compute_dtype == self.parameter_dtype:
            return nullcontext()
        return torch.autocast(device, self.compute_dtype)


def tf32_switches() -> tuple[Any, Any]:
    """Return the objects whose `fp32_precision` rules matrix products and convolutions.

    The global switch does not reach cudnn.conv, whose own default is TF32 (pytorch issue 179445).
    """
    return torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv")  # noqa: B009 -- no type stub has it


def policy(precision: str, device: str, loss_scale: float = 65536.0) -> Policy:
    """Return the policy of a precision by name; `loss_scale` is float16's first one.

    Raises:
        Refused: for a precision that the device does not have.
    """
    if precision == "tf32" and device == "cpu":
        raise Refused("precision tf32 needs --device cuda")
    tf32 = None if device == "cpu" else precision == "tf32"
    if precision == "float64":
        return Policy(torch.float64, torch.float64, tf32, loss_scale=None)
    if precision in ("float32", "tf32"):
        return Policy(torch.float32, torch.float32, tf32, loss_scale=None)
    if precision == "bfloat16":
        return Policy(torch.float32, torch.bfloat16, tf32, loss_scale=None)
    return Policy(torch.float32, torch.float16, tf32, loss_scale=loss_scale)


def loss_scale(policy: Policy, device: str) -> torch.amp.GradScaler:
    """Return torch's own dynamic loss scaling, switched off where the policy does not scale."""
    return torch.amp.GradScaler(
        device,
        init_scale=policy.loss_scale or 1.0,
        growth_factor=GROWTH_FACTOR,
        backoff_factor=BACKOFF_FACTOR,
        growth_interval=GROWTH_INTERVAL,
        enabled=policy.loss_scale is not None,
    )
