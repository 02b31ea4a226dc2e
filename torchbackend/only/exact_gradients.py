"""Gradients that torch computes inexactly in float64, replaced while float64 is the reference.

Only a certificate runs in float64, so nothing that is timed changes.
"""

import warnings
from typing import Any

import torch

INEXACT = {"hardsigmoid": "torch multiplies by a float32 sixth, which is off by 3e-8"}
"""Functions with such a gradient, and the reason."""

_DEVICES = ("CPU", "CUDA")
_replaced: list[Any] = []


def use(*, wanted: bool) -> None:
    """Use exact gradients from now on if `wanted`, or else torch's own."""
    if wanted and not _replaced:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings(action="ignore"):  # torch warns that its own gradient is replaced
            for device in _DEVICES:
                library.impl("hardsigmoid_backward", _hardsigmoid_backward, device)
        _replaced.append(library)
    while _replaced and not wanted:
        _replaced.pop()._destroy()


def _hardsigmoid_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where((x > -3) & (x < 3), gradient / 6, 0.0)
