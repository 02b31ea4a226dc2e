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
    reduced = [*_reduced(graph)]
    bytes_to_come = sum(each.value.nbytes for each in reduced)
    bucket, size, most = list[_Reduced](), 0, _SMALL
    for each in reduced:
        bucket.append(each)
        size, bytes_to_come = size + each.value.nbytes, bytes_to_come - each.value.nbytes
        is_last_but_one = bytes_to_come <= _SMALL < bytes_to_come + each.value.nbytes
        if size >= most or is_last_but_one or not bytes_to_come:
            _join(graph, bucket)
            bucket, size, most = [], 0, inductor._fuse_ddp_bucket_size * 2**20  # as DistributedDataParallel has it


@dataclass
class _Reduced:
    """One gradient's reduction in a graph: the quotient that is added up, the sum, its wait, and what is returned."""

    quotient: Any
    sum: Any
    wait: Any
    end: Any

    @property
    def value(self) -> torch.Tensor:
        return self.quotient.meta["val"]

    @property
    def order(self) -> list[int]:
        """The axes as they lie in memory in what is returned, which is as the parameter's do."""
        returned = self.end.meta["val"]
        return sorted(range(returned.ndim), key=lambda axis: (-returned.stride(axis), axis))


def _reduced(graph: Graph) -> Iterator[_Reduced]:
    (output,) = graph.find_nodes(op="output")
    total: Any
    for total in graph.find_nodes(op="call_function", target=_C10D.all_reduce.default):
        quotient, (wait,) = total.args[0], total.users
        if quotient.target is not _ATEN.div.Tensor:  # batch norm's exchange
            continue
        end, (user,) = wait, wait.users
        if user.target is _ATEN.copy.default:  # into what the gradient was computed in
            end, (user,) = user, user.users
        if user is output:
            gradient = quotient.args[0]
            if gradient.target is _ATEN.copy.default:  # torch 2.11: into the order of the axes
                gradient = gradient.args[1]
                if gradient.meta["val"].dtype != quotient.meta["val"].dtype:
                    raise TypeError(f"{gradient} would be reduced in {gradient.meta['val'].dtype}")
                quotient.args = (gradient, *quotient.args[1:])
            with gradient.meta["val"].fake_mode:
                quotient.meta["val"] = torch.empty_like(gradient.meta["val"])
            yield _Reduced(quotient, total, wait, end)


def _join(graph: Graph, bucket: Sequence[_Reduced]) -> None:
    output: Any
    (output,) = graph.find_nodes(op="output")
    place = {node: number for number, node in enumerate(graph.nodes)}
    last = max((each.quotient for each in bucket), key=place.__getitem__)
    with graph.inserting_before(last.next):
        flat = [call_function(graph, _ATEN.permute.default, (each.quotient, each.order)) for each in bucket]
        flat = [call_function(graph, _ATEN.reshape.default, (node, [-1])) for node in flat]
        whole: Any = call_function(graph, _ATEN.cat.default, (flat,))
        whole = call_function(graph, _C10D.all_reduce.default, (whole, *bucket[0].sum.args[1:]))
    with graph.inserting_before(output):
        whole = call_function(graph, _C10D.wait_tensor.default, (whole,))
        parts, start = {}, 0
        for each in bucket:
            end, shape = start + each.value.numel(), [each.value.shape[axis] for axis in each.order]
            part = call_function(graph, _ATEN.slice.Tensor, (whole, 0, start, end))
            part = call_function(graph, _ATEN.reshape.default, (part, shape))
            back = [each.order.index(axis) for axis in range(len(shape))]
            parts[each.end] = call_function(graph, _ATEN.permute.default, (part, back))
            start = end
    output.args = (tuple(parts.get(node, node) for node in output.args[0]),)
    for each in bucket:  # torch leaves exchanges where they are, needed or not
        for node in dict.fromkeys((each.end, each.wait, each.sum)):
            graph.erase_node(node)
