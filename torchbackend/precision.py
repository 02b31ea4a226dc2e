"""Precisions: which dtype each part of a training step uses, and float16's dynamic loss scaling."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

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
        fuses_batch_norm: whether 1x1 convolutions take batch norm's memory passes along (`torchbackend.fused`).
    """

    parameter_dtype: torch.dtype
    compute_dtype: torch.dtype
    tf32: bool | None
    loss_scale: float | None
    synchronised: bool = False
    fuses_batch_norm: bool = False

    @contextmanager
    def scope(self) -> Generator[None]:
        """Set the framework's global precision switches to this policy while the context lasts.

        Constants that a model makes in its forward pass get the default dtype. In float64 they are exact, too.
        """
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if self.parameter_dtype == torch.float64 else torch.float32)
        switches = () if self.tf32 is None else _tf32_switches()
        before = [switch.fp32_precision for switch in switches]
        older = [] if self.tf32 is None else [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]
        try:
            if self.tf32 is not None:
                _set_older_switches(self.tf32, self.tf32)
            for switch in switches:
                switch.fp32_precision = "tf32" if self.tf32 else "ieee"
            yield
        finally:
            torch.set_default_dtype(default)
            if older:
                _set_older_switches(*older)
            for switch, setting in zip(switches, before, strict=True):
                switch.fp32_precision = setting


def policy(precision: str, device: str, loss_scale: float = 65536.0) -> Policy:
    """Return the policy of a precision by name. `loss_scale` is the initial one of float16.

    Raises:
        Refused: the device does not have this precision.
    """
    facts = PRECISIONS[precision]
    if not facts.runs_on(device):
        raise Refused(f"precision {precision} needs --device {facts.required_device}")
    return Policy(
        parameter_dtype=getattr(torch, facts.storage_dtype),
        compute_dtype=getattr(torch, facts.compute_dtype),
        tf32=None if device == "cpu" else precision == "tf32",
        loss_scale=loss_scale if facts.has_loss_scale else None,
    )


def uses_tf32() -> bool:
    """Tell whether float32 products round their inputs to TF32 now."""
    return {switch.fp32_precision for switch in _tf32_switches()} == {"tf32"}


def _set_older_switches(convolutions: bool, products: bool) -> None:
    """Set `allow_tf32`, which AOTInductor reads. torch refuses to read it if it contradicts `fp32_precision`."""
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.allow_tf32 = products


def _tf32_switches() -> tuple[Any, ...]:
    """Return the objects with a switch `fp32_precision`: for matrix products, convolutions and recurrent layers.

    The global switch does not reach cudnn.conv, and the default there is TF32 (pytorch issue 179445).
    """
    return (
        torch.backends.cuda.matmul,
        *(getattr(torch.backends.cudnn, name) for name in ("conv", "rnn")),  # no type stub has them
    )
