"""How a batch is split over devices, a process on each: the knob `parallel`."""

import inspect
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.nn.parallel import DistributedDataParallel

from compare.interface import Refused
from compare.machines.crew import Place


def device(name: str, place: Place | None) -> torch.device:
    """Return this process's device of a kind.

    Raises:
        Refused: there are not so many.
    """
    if name == "cpu":
        return torch.device("cpu")
    there = torch.cuda.device_count()
    if not there:
        raise Refused("torch sees no cuda device")
    if place is not None and place.here > there:
        raise Refused(f"{place.here} cuda devices are not there; torch sees {there}")
    found = torch.device("cuda", 0 if place is None else place.local)
    torch.cuda.set_device(found)
    return found


def wrapped(model: nn.Module, device: torch.device, place: Place | None, *, captured: bool) -> nn.Module:
    """Return what trains the model: the model itself, or DistributedDataParallel around it.

    Buffers are left to each process, as local batch norm has them; synchronised ones are equal everywhere. Where steps
    are `captured`, it is made on a stream of its own, as no capture may meet the default one (pytorch.org, CUDA
    semantics, usage with DistributedDataParallel).
    """
    if place is None:
        return model
    with torch.cuda.stream(torch.cuda.Stream(device)) if captured else nullcontext():
        return DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_LEFT,
        )


# torch 2.13 calls it otherwise, and warns of the old name.
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_LEFT: dict[str, Any] = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False}


def join(place: Place, name: str, port: int) -> None:
    """Meet the other processes: NCCL between GPUs, gloo on a CPU, whose cores those of one machine share.

    They find each other at a `port` of the first one's machine. Between machines gloo takes the network that leads
    there, unless GLOO_SOCKET_IFNAME names another; NCCL chooses itself, or as NCCL_SOCKET_IFNAME says.

    Raises:
        Refused: there are not so many devices.
    """
    device(name, place)
    if name == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // place.here))
        if place.interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", place.interface)
    # Not init_method="tcp://", which would take torchrun's own store where torchrun has started samestep.
    store = dist.TCPStore(place.host, port, place.count, is_master=place.rank == 0)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("nccl" if name == "cuda" else "gloo", store=store, rank=place.rank, world_size=place.count)


def reduction_dtype(model: nn.Module, place: Place | None) -> torch.dtype | None:
    """Return the dtype in which DistributedDataParallel adds up gradients, the parameters' own; None for one device."""
    return None if place is None or place.count == 1 else next(model.parameters()).dtype


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
