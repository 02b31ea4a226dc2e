"""What devices exchange within a step: the moments of a synchronised batch norm (DistributedDataParallel exchanges
gradients), and in which dtype."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives

from compare.machines.crew import Place


def reduction_dtype(model: nn.Module, place: Place | None) -> torch.dtype | None:
    """Return the dtype in which DistributedDataParallel adds up gradients, the parameters' own; None for one device."""
    return None if place is None else next(model.parameters()).dtype


def moments(
    wide: torch.Tensor, own: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], *, synchronised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance of the whole batch from each device's `own`, of equally many values.

    Where they are not `synchronised`, one device's are the whole's. One exchange for both (Chan, Golub and LeVeque
    1983, Algorithms for Computing the Sample Variance).
    """
    if not synchronised:
        return own(wide)
    means, variances = _gathered(torch.stack(own(wide))).unbind(1)
    whole = means.mean(0)
    return whole, (variances + (means - whole).square()).mean(0)


def _gathered(own: torch.Tensor) -> torch.Tensor:
    """Return every device's tensor, stacked. A sum, because it differentiates to a sum, which every engine has."""
    count, rank = dist.get_world_size(), dist.get_rank()
    zero = torch.zeros_like(own)
    return _Sum.apply(torch.stack([own if each == rank else zero for each in range(count)]))  # type: ignore[no-any-return]


class _Sum(torch.autograd.Function):
    """The sum of a tensor over all devices, and of its gradients."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Sum [...]."""
        return _summed(own)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Sum the gradients of every device's copy."""
        return _summed(gradients[0])


def _summed(own: torch.Tensor) -> torch.Tensor:
    # Around dist.all_reduce, which is in place, torch 2.11 compiles a wrong gradient; torch 2.13 does not.
    everyone = dist.group.WORLD
    assert everyone is not None  # all have joined
    return collectives.wait_tensor(collectives.all_reduce(own.contiguous(), "sum", everyone))
