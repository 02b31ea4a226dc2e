"""How a batch is split over devices, a process on each: the knob `parallel`."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compare.interface import Refused


@dataclass(frozen=True)
class Place:
    """Which of a contender's processes this is, and whether it shares its work with others.

    Attributes:
        rank: its number, from 0.
        count: how many there are.
        shared: whether gradients are averaged over them by DistributedDataParallel, even where there is one only.
    """

    rank: int = 0
    count: int = 1
    shared: bool = False

    def device(self, name: str) -> torch.device:
        """Return this process's device of a kind.

        Raises:
            Refused: there are not so many.
        """
        if name == "cpu":
            return torch.device("cpu")
        there = torch.cuda.device_count()
        if not there:
            raise Refused("torch sees no cuda device")
        if self.count > there:
            raise Refused(f"{self.count} cuda devices are not there; torch sees {there}")
        device = torch.device("cuda", self.rank)
        torch.cuda.set_device(device)
        return device

    def wrapped(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return what trains the model: the model itself, or DistributedDataParallel around it.

        Buffers are left to each process, as local batch norm has them; synchronised ones are equal everywhere.
        """
        if not self.shared:
            return model
        return DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_LEFT,
        )


# torch 2.13 calls it otherwise, and warns of the old name.
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_LEFT: dict[str, Any] = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False}

ALONE = Place()


def join(place: Place, device: str, meeting: Path) -> None:
    """Meet the other processes: NCCL between GPUs, gloo on a CPU, whose cores the processes share.

    `meeting` is a file by which they find each other.
    """
    if device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // place.count))
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=place.rank, world_size=place.count)


def moments(mean: torch.Tensor, var: torch.Tensor, *, synchronised: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance over all devices from each device's own, of equally many values.

    One exchange for both (Chan, Golub and LeVeque 1983, Algorithms for Computing the Sample Variance).
    """
    if not synchronised:
        return mean, var
    means, variances = _gathered(torch.stack([mean, var])).unbind(1)
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
    total = own.contiguous().clone()
    dist.all_reduce(total)
    return total
