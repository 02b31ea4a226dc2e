"""How a batch is split over devices, with one process a device: the knob `parallel`."""

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
    """Return this process's device of a kind, if this machine has at least `here` of them.

    It is the first GPU that the process sees. A contender's first process sees all GPUs, and each other process sees
    its own only (`compare.worker.rank_controller`).

    Raises:
        Refused: there are fewer devices.
    """
    if name == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if not count:
        raise Refused("torch sees no cuda device")
    if here > count:
        raise Refused(f"{here} cuda devices are needed; torch sees {count}")
    first = torch.device("cuda", 0)
    torch.cuda.set_device(first)
    return first


def wrap(model: nn.Module, device: torch.device, place: RankInfo | None, *, captured: bool) -> nn.Module:
    """Return the model itself, or DistributedDataParallel around it for training on several devices.

    Buffers stay each process's own, for local batch norm. Synchronised buffers are equal everywhere. If steps are
    `captured`, the wrapper is made on a stream of its own, because a capture must not use the default stream
    (pytorch.org, CUDA semantics, usage with DistributedDataParallel).
    """
    if place is None:
        return model
    with torch.cuda.stream(torch.cuda.Stream(device)) if captured else nullcontext():
        return DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_OWN_BUFFERS,
        )


# torch 2.13 renames this argument and warns of the old name.
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_OWN_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False}


def join(place: RankInfo, name: str, port: int) -> None:
    """Meet the other processes at a `port` of the first one's machine: NCCL between GPUs, gloo on a CPU.

    Processes of one machine share its CPU cores. Between machines gloo takes the network that leads there, unless
    GLOO_SOCKET_IFNAME names another. NCCL chooses itself, or follows NCCL_SOCKET_IFNAME.

    Raises:
        Refused: there are fewer devices.
    """
    device(name)
    if name == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // place.local_world_size))
        if place.interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", place.interface)
    # Not init_method="tcp://": it would take torchrun's own store where torchrun has started samestep.
    store = dist.TCPStore(place.host, port, place.world_size, is_master=place.rank == 0)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(
        "nccl" if name == "cuda" else "gloo", store=store, rank=place.rank, world_size=place.world_size
    )
    programs.share(store, place)
