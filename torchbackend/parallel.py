"""How a batch is split over devices, a process on each: the knob `parallel`."""

import inspect
import os
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compare.base.interface import Refused
from compare.base.process_group import RankInfo
from torchbackend.only import programs


def device(name: str, here: int = 1) -> torch.device:
    """Return this process's device of a kind, of which so many are to be `here`.

    It is the first GPU: of a contender's processes each sees its own alone, but the first, whose own is the first
    (`compare.worker.rank_controller`).

    Raises:
        Refused: there are not so many.
    """
    if name == "cpu":
        return torch.device("cpu")
    there = torch.cuda.device_count()
    if not there:
        raise Refused("torch sees no cuda device")
    if here > there:
        raise Refused(f"{here} cuda devices are not there; torch sees {there}")
    found = torch.device("cuda", 0)
    torch.cuda.set_device(found)
    return found


def wrapped(model: nn.Module, device: torch.device, place: RankInfo | None, *, captured: bool) -> nn.Module:
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


def join(place: RankInfo, name: str, port: int) -> None:
    """Meet the other processes: NCCL between GPUs, gloo on a CPU, whose cores those of one machine share.

    They find each other at a `port` of the first one's machine. Between machines gloo takes the network that leads
    there, unless GLOO_SOCKET_IFNAME names another; NCCL chooses itself, or as NCCL_SOCKET_IFNAME says.

    Raises:
        Refused: there are not so many devices.
    """
    device(name)
    if name == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // place.local_world_size))
        if place.interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", place.interface)
    # Not init_method="tcp://", which would take torchrun's own store where torchrun has started samestep.
    store = dist.TCPStore(place.host, port, place.world_size, is_master=place.rank == 0)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(
        "nccl" if name == "cuda" else "gloo", store=store, rank=place.rank, world_size=place.world_size
    )
    programs.share(store, place)
