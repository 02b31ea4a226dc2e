"""Exchanges between devices within a step: the moments of a synchronised batch norm.

DistributedDataParallel exchanges the gradients.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives

_Local = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def reduction_dtype(model: nn.Module) -> str:
    """Return the dtype in which devices add up gradients: in DistributedDataParallel, the parameters' own."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def moments(wide: torch.Tensor, local: _Local, *, synchronised: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance of the whole batch, from each device's `local` moments of equally many values.

    Unless `synchronised`, a device uses its local moments. One exchange serves both (Chan, Golub and LeVeque 1983,
    Algorithms for Computing the Sample Variance).
    """
    if not synchronised:
        return local(wide)
    whole: Any = _Moments.apply(wide, local)
    return whole


class _Moments(torch.autograd.Function):
    """Exchange two vectors once in the forward and once in the backward pass. The gradient is written out.

    A device needs only the sums of the moments' gradients from the others. Automatic differentiation would exchange
    more, and a compiled program would have two more kernels a layer.
    """

    @staticmethod
    def forward(ctx: Any, wide: torch.Tensor, local: _Local) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean [C] and biased variance [C] of all devices' values [N, C, H, W]."""
        means, variances = _gather(torch.stack(local(wide))[None], 0, _group()).unbind(1)
        mean = means.mean(0)
        ctx.save_for_backward(wide, mean)
        return mean, (variances + (means - mean).square()).mean(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the gradient of this device's values from the gradients of mean and variance on every device."""
        wide, mean = ctx.saved_tensors
        group = _group()
        count = wide.numel() // wide.shape[1] * group.size()
        of_mean, of_variance = gradients
        sums = torch.stack((of_mean / count, 2 * of_variance / count))
        offset, slope = collectives.all_reduce(sums, "sum", group)[..., None, None]
        return offset + slope * (wide - mean[:, None, None]), None


def _group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None  # all processes have joined
    return group


# torch 2.13 renames this function and warns of the old name.
_NAMES = "all_gather_single", "all_gather_tensor"
_gather: Callable[..., torch.Tensor] = getattr(collectives, next(name for name in _NAMES if hasattr(collectives, name)))
