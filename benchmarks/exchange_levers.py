"""Changes to what torch's devices exchange for a synchronised batch norm, for `benchmarks.step_time --lever` to try."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch._inductor import config
from torch._inductor.custom_graph_pass import get_hash_for_files
from torch._ops import OpOverload
from torch.distributed import _functional_collectives as collectives
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.fx import Graph, Node

from torchbackend import exchange, overlap, parallel

_C10D = torch.ops._c10d_functional
_CAST = torch.ops.prims.convert_element_type.default
_GATHER, _SCATTER = _C10D.all_gather_into_tensor.default, _C10D.reduce_scatter_tensor.default


def one_shot_forward() -> None:
    """Exchange forward by torch's kernel for small sums through NVLink, where each device writes in a place of its own.

    It goes with the knob `overlap-exchanges`, which hides the exchanges backward.
    """
    _through_symmetric_memory()
    exchange._gathered = lambda x, *_: _Sums.apply(x)


def in_stream_forward() -> None:
    """Exchange forward on the stream that computes, so that in a captured graph it is on no branch of its own.

    A collective that is not asynchronous runs so since torch 2.8; torch's functional ones are asynchronous.
    """
    exchange._gathered = lambda x, *_: _Gathered.apply(x)


def in_stream() -> None:
    """Exchange backward so, too: no branch, and nothing runs beside an exchange."""
    exchange._gathered = lambda x, *_: _InStream.apply(x)


def early() -> None:
    """Begin every exchange, and what it needs, before the first wait that it does not need, and cast weights before it.

    It is so where a block's input goes two ways. It goes with the knob `overlap-exchanges`.
    """
    plain = overlap._WeightGradientsLate

    class Early(plain):
        def __call__(self, graph: Graph) -> None:
            _exchanges_early(graph)
            _casts_early(graph)
            super().__call__(graph)

        def uuid(self) -> bytes:
            return super().uuid() + get_hash_for_files((__file__,))

    setattr(overlap, plain.__name__, Early)


def _through_symmetric_memory() -> None:
    config._collective.auto_select = True
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    plain = parallel.join

    def join(*arguments: Any) -> None:
        plain(*arguments)
        symmetric_memory.enable_symm_mem_for_group(_everyone().group_name)

    parallel.join = join


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the sum of all devices' gradients of this one's."""
        return collectives.reduce_scatter_tensor(gradient.contiguous(), "sum", 0, _everyone())


class _Sums(_Exchanged):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Return x [1, 2, C] of every device, [N, 2, C]."""
        own = torch.arange(dist.get_world_size(), device=x.device) == dist.get_rank()
        return collectives.all_reduce(torch.where(own[:, None, None], x, 0), "sum", _everyone())


class _Gathered(_Exchanged):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Return x [1, 2, C] of every device, [N, 2, C]."""
        return _gathered(x)


class _InStream(_Gathered):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Return the sum of all devices' gradients of this one's."""
        return _scattered(gradient)


@torch.library.custom_op("samestep::gathered", mutates_args=())
def _gathered(x: torch.Tensor) -> torch.Tensor:
    whole = _like_all(x)
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


@_gathered.register_fake
def _like_all(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])


@torch.library.custom_op("samestep::scattered", mutates_args=())
def _scattered(gradient: torch.Tensor) -> torch.Tensor:
    own = _like_own(gradient)
    dist.reduce_scatter_tensor(own, gradient.contiguous())
    return own


@_scattered.register_fake
def _like_own(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.new_empty(len(gradient) // dist.get_world_size(), *gradient.shape[1:])


def _everyone() -> dist.ProcessGroup:
    everyone = dist.group.WORLD
    assert everyone is not None  # all have joined
    return everyone


def _waits(graph: Graph, *kinds: OpOverload) -> list[Node]:
    ends = graph.find_nodes(op="call_function", target=_C10D.wait_tensor.default)
    return [end for end in ends if end.all_input_nodes[0].target in kinds]


def _exchanges_early(graph: Graph) -> None:
    """Begin every exchange, and what it needs, before the first wait that it does not need."""
    waits = _waits(graph, _GATHER, _SCATTER)
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
    wait, ends = None, {*_waits(graph, _GATHER)}
    for node in list(graph.nodes):
        if node in ends:
            wait = node
        elif wait is not None and node.target is _CAST and node.all_input_nodes[0].op == "placeholder":
            wait.prepend(node)
