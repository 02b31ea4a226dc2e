"""What devices exchange within a step: the moments of a synchronised batch norm (DistributedDataParallel exchanges
gradients), and in which dtype."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives

from compare.base.process_group import RankInfo

_Own = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def reduction_dtype(model: nn.Module, place: RankInfo | None) -> torch.dtype | None:
    """Return the dtype in which DistributedDataParallel adds up gradients, the parameters' own; None for one device."""
    return None if place is None else next(model.parameters()).dtype


def in_step(model: nn.Module) -> bool:
    """Whether devices exchange the moments of a batch norm in each forward and backward pass of a twin."""
    return any(getattr(layer, "synchronised", False) for layer in model.modules())


def moments(wide: torch.Tensor, own: _Own, *, synchronised: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance of the whole batch from each device's `own`, of equally many values.

    Where they are not `synchronised`, one device's are the whole's. One exchange for both (Chan, Golub and LeVeque
    1983, Algorithms for Computing the Sample Variance).
    """
    if not synchronised:
        return own(wide)
    whole: Any = _Moments.apply(wide, own)
    return whole


class _Moments(torch.autograd.Function):
    """One exchange of two vectors forward and one backward, whose gradient is written out.

    All that a device needs of the others are the sums of the moments' gradients. Automatic differentiation has each
    send the others what each needs, for which a compiled program has two kernels more a layer.
    """

    @staticmethod
    def forward(ctx: Any, wide: torch.Tensor, own: _Own) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean [C] and biased variance [C] of all devices' values [N, C, H, W]."""
        means, variances = _gathered(torch.stack(own(wide))[None], 0, _everyone()).unbind(1)
        mean = means.mean(0)
        ctx.save_for_backward(wide, mean)
        return mean, (variances + (means - mean).square()).mean(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the gradient of this device's values, from those of mean and variance on every device."""
        wide, mean = ctx.saved_tensors
        everyone = _everyone()
        count = wide.numel() // wide.shape[1] * everyone.size()
        of_mean, of_variance = gradients
        sums = torch.stack((of_mean / count, 2 * of_variance / count))
        offset, slope = collectives.all_reduce(sums, "sum", everyone)[..., None, None]
        return offset + slope * (wide - mean[:, None, None]), None


def _everyone() -> dist.ProcessGroup:
    everyone = dist.group.WORLD
    assert everyone is not None  # all have joined
    return everyone


# torch 2.13 calls this function otherwise, and warns of the old name.
_NAMES = "all_gather_single", "all_gather_tensor"
_gathered: Callable[..., torch.Tensor] = getattr(
    collectives, next(name for name in _NAMES if hasattr(collectives, name))
)
