"""Changes to what torch's devices exchange for a synchronised batch norm, for `benchmarks.step_time --lever` to try."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch._inductor import config
from torch.distributed import _functional_collectives as collectives
from torch.distributed import _symmetric_memory as symmetric_memory

from torchbackend import exchange, overlap, parallel


def one_shot_forward() -> None:
    """Exchange forward by torch's kernel for small sums through NVLink, where each device writes in a place of its own.

    It goes with the knob `overlap-exchanges`, which hides the exchanges backward.
    """
    _through_symmetric_memory()
    exchange._gathered = lambda x, *_: _Sums.apply(x)


def in_order() -> None:
    """Have `overlap-exchanges` move weight gradients alone, and no exchange and no cast."""
    overlap._exchanges_early = overlap._casts_early = lambda _: None
    setattr(overlap._Overlapped, "uuid", lambda _: b"in order")  # noqa: B010 -- a class; what TorchInductor keeps its programs by


def _through_symmetric_memory() -> None:
    config._collective.auto_select = True
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    plain = parallel.join

    def join(*arguments: Any) -> None:
        plain(*arguments)
        symmetric_memory.enable_symm_mem_for_group(_everyone().group_name)

    parallel.join = join


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Return x [1, 2, C] of every device, [N, 2, C]."""
        own = torch.arange(dist.get_world_size(), device=x.device) == dist.get_rank()
        return collectives.all_reduce(torch.where(own[:, None, None], x, 0), "sum", _everyone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the sum of all devices' gradients of this one's."""
        return collectives.reduce_scatter_tensor(gradient.contiguous(), "sum", 0, _everyone())


def _everyone() -> dist.ProcessGroup:
    everyone = dist.group.WORLD
    assert everyone is not None  # all have joined
    return everyone
