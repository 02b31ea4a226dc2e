"""What devices exchange within a step: the moments of a synchronised batch norm (DistributedDataParallel exchanges
gradients), and in which dtype."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives

from compare.machines.crew import Place


def reduction_dtype(model: nn.Module, place: Place | None) -> torch.dtype | None:
    """Return the dtype in which DistributedDataParallel adds up gradients, the parameters' own; None for one device."""
    return None if place is None else next(model.parameters()).dtype


def in_step(model: nn.Module) -> bool:
    """Whether devices exchange the moments of a batch norm in each forward and backward pass of a twin."""
    return any(getattr(layer, "synchronised", False) for layer in model.modules())


def moments(
    wide: torch.Tensor, own: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], *, synchronised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance of the whole batch from each device's `own`, of equally many values.

    Where they are not `synchronised`, one device's are the whole's. One exchange for both (Chan, Golub and LeVeque
    1983, Algorithms for Computing the Sample Variance).
    """
    if not synchronised:
        return own(wide)
    everyone = dist.group.WORLD
    assert everyone is not None  # all have joined
    each = _gathered(torch.stack(own(wide))[None], 0, everyone)
    means, variances = each.unbind(1)
    whole = means.mean(0)
    return whole, (variances + (means - whole).square()).mean(0)


# Around dist.all_reduce, which is in place, torch 2.11 compiles a wrong gradient; torch 2.13 does not. It calls this
# function otherwise, too, and warns of the old name.
_NAMES = "all_gather_single_autograd", "all_gather_tensor_autograd"
_gathered: Callable[..., torch.Tensor] = getattr(
    collectives, next(name for name in _NAMES if hasattr(collectives, name))
)
