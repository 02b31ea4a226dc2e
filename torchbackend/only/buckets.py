"""The gradients that devices add up within a compiled backward pass, in buckets: the knob `compiled-autograd`.

DistributedDataParallel's `python_reducer` reduces every gradient alone. Torch's own passes join reductions, but no
gradient of a convolution in NHWC, or only in the order of its axes. Here a bucket is one array. The kernels that
compute gradients write into it, in the memory order of the parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._inductor import config as inductor
from torch._inductor.fx_passes.ddp_fusion import call_function
from torch.fx import Graph

from torchbackend.only import programs

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional
_SMALL = 2**20  # bytes of the first bucket, as in DistributedDataParallel, and the most of the last


def make_backward_context(*, compiled: bool, shared: bool = False) -> Callable[[], AbstractContextManager[None]]:
    """Return a function that makes a context for a forward and a backward pass, which compiles the latter if wanted.

    DistributedDataParallel's hooks, and so its reductions, are then part of the program (pytorch.org, tutorial on
    compiled autograd). Torch's own switch compiles functions that contain their backward pass.
    """
    if not compiled:
        return nullcontext
    compiler = torch.compile(dynamic=False, backend=programs.compiler(shared=shared))
    return lambda: compiled_autograd._enable(compiler, dynamic=False)


def join(graph: Graph) -> None:
    """Join the reductions of a graph into buckets, each reduced as soon as it is full.

    The last bucket is small, because no computation runs beside it.
    """
    reductions = [*_find_reductions(graph)]
    bytes_to_come = sum(reduction.value.nbytes for reduction in reductions)
    bucket, size, most = list[_Reduction](), 0, _SMALL
    for reduction in reductions:
        bucket.append(reduction)
        size, bytes_to_come = size + reduction.value.nbytes, bytes_to_come - reduction.value.nbytes
        is_last_but_one = bytes_to_come <= _SMALL < bytes_to_come + reduction.value.nbytes
        if size >= most or is_last_but_one or not bytes_to_come:
            _join(graph, bucket)
            bucket, size, most = [], 0, inductor._fuse_ddp_bucket_size * 2**20  # as in DistributedDataParallel


@dataclass
class _Reduction:
    """One gradient's reduction in a graph: the quotient, its sum over devices, the wait for it, and the result."""

    quotient: Any
    sum: Any
    wait: Any
    end: Any

    @property
    def value(self) -> torch.Tensor:
        return self.quotient.meta["val"]

    @property
    def order(self) -> list[int]:
        """The order of the axes in the result's memory, which is the parameter's."""
        returned = self.end.meta["val"]
        return sorted(range(returned.ndim), key=lambda axis: (-returned.stride(axis), axis))


def _find_reductions(graph: Graph) -> Iterator[_Reduction]:
    (output,) = graph.find_nodes(op="output")
    total: Any
    for total in graph.find_nodes(op="call_function", target=_C10D.all_reduce.default):
        quotient, (wait,) = total.args[0], total.users
        if quotient.target is not _ATEN.div.Tensor:  # batch norm's exchange
            continue
        end, (user,) = wait, wait.users
        if user.target is _ATEN.copy.default:  # into the gradient's own memory
            end, (user,) = user, user.users
        if user is output:
            gradient = quotient.args[0]
            if gradient.target is _ATEN.copy.default:  # torch 2.11 copies into the order of the axes
                gradient = gradient.args[1]
                if gradient.meta["val"].dtype != quotient.meta["val"].dtype:
                    raise TypeError(f"{gradient} would be reduced in {gradient.meta['val'].dtype}")
                quotient.args = (gradient, *quotient.args[1:])
            with gradient.meta["val"].fake_mode:
                quotient.meta["val"] = torch.empty_like(gradient.meta["val"])
            yield _Reduction(quotient, total, wait, end)


def _join(graph: Graph, bucket: Sequence[_Reduction]) -> None:
    output: Any
    (output,) = graph.find_nodes(op="output")
    place = {node: number for number, node in enumerate(graph.nodes)}
    last = max((reduction.quotient for reduction in bucket), key=place.__getitem__)
    with graph.inserting_before(last.next):
        flat = [
            call_function(graph, _ATEN.permute.default, (reduction.quotient, reduction.order)) for reduction in bucket
        ]
        flat = [call_function(graph, _ATEN.reshape.default, (node, [-1])) for node in flat]
        whole: Any = call_function(graph, _ATEN.cat.default, (flat,))
        whole = call_function(graph, _C10D.all_reduce.default, (whole, *bucket[0].sum.args[1:]))
    with graph.inserting_before(output):
        whole = call_function(graph, _C10D.wait_tensor.default, (whole,))
        parts, start = {}, 0
        for reduction in bucket:
            end, shape = start + reduction.value.numel(), [reduction.value.shape[axis] for axis in reduction.order]
            part = call_function(graph, _ATEN.slice.Tensor, (whole, 0, start, end))
            part = call_function(graph, _ATEN.reshape.default, (part, shape))
            back = [reduction.order.index(axis) for axis in range(len(shape))]
            parts[reduction.end] = call_function(graph, _ATEN.permute.default, (part, back))
            start = end
    output.args = (tuple(parts.get(node, node) for node in output.args[0]),)
    for reduction in bucket:  # torch removes no exchange, even if it is not needed
        for node in dict.fromkeys((reduction.end, reduction.wait, reduction.sum)):
            graph.erase_node(node)
