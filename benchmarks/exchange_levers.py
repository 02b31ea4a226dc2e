"""Changes to what torch's devices exchange for a synchronised batch norm, for `benchmarks.step_time --lever` to try."""

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch._inductor import config
from torch.distributed import _functional_collectives as collectives
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.fx import Graph, Node

from torchbackend import exchange, overlap, parallel

_C10D = torch.ops._c10d_functional
_CAST = torch.ops.prims.convert_element_type.default


def one_shot_forward() -> None:
    """Exchange forward by torch's kernel for small sums through NVLink, where each device writes in a place of its own.

    It goes with the knob `overlap-exchanges`, which hides the exchanges backward.
    """
    _through_symmetric_memory()
    exchange._gathered = _by_sums


def early() -> None:
    """Begin every exchange, and what it needs, before the first wait that it does not need, and cast weights before it.

    It is so where a block's input goes two ways. It goes with the knob `overlap-exchanges`.
    """
    plain = overlap.weight_gradients_late

    def early_and_late(graph: Graph) -> None:
        _exchanges_early(graph)
        _casts_early(graph)
        plain(graph)

    overlap.weight_gradients_late = early_and_late


def _through_symmetric_memory() -> None:
    config._collective.auto_select = True
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    plain = parallel.join

    def join(*arguments: Any) -> None:
        plain(*arguments)
        symmetric_memory.enable_symm_mem_for_group(exchange._everyone().group_name)

    parallel.join = join


def _by_sums(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return x [1, 2, C] of every device, [N, 2, C]."""
    own = torch.arange(dist.get_world_size(), device=x.device) == dist.get_rank()
    return collectives.all_reduce(torch.where(own[:, None, None], x, 0), "sum", exchange._everyone())


def _waits(graph: Graph) -> Iterable[Node]:
    return graph.find_nodes(op="call_function", target=_C10D.wait_tensor.default)


def _is_gathered(end: Node) -> bool:
    return end.all_input_nodes[0].target is _C10D.all_gather_into_tensor.default


def _exchanges_early(graph: Graph) -> None:
    """Begin every exchange, and what it needs, before the first wait that it does not need."""
    waits = [end for end in _waits(graph) if _is_gathered(end) or overlap._is_of_batch_norm(end)]
    for start in [end.all_input_nodes[0] for end in waits]:
        nodes = list(graph.nodes)
        place = {node: index for index, node in enumerate(nodes)}
        needed = {start}
        for node in reversed(nodes[: place[start]]):
            if needed & {*node.users}:
                needed.add(node)
        wait = next((each for each in waits if each not in needed and place[each] < place[start]), None)
        if wait is not None:
            for node in nodes[place[wait] : place[start] + 1]:
                if node in needed:
                    wait.prepend(node)


def _casts_early(graph: Graph) -> None:
    """Cast parameters in the forward pass before a wait and not after it."""
    wait, ends = None, {end for end in _waits(graph) if _is_gathered(end)}
    for node in list(graph.nodes):
        if node in ends:
            wait = node
        elif wait is not None and node.target is _CAST and node.all_input_nodes[0].op == "placeholder":
            wait.prepend(node)
