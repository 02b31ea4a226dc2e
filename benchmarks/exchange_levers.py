"""Changes to what torch's devices exchange for a synchronised batch norm, and to what runs meanwhile, for
`benchmarks.step_time --lever` and `benchmarks.inductor_program --lever` to try.

An exchange forward holds up all that follows, and one backward need hold up no gradient of weights.
"""

import operator
import os
from typing import Any

import torch
import torch.distributed as dist
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.distributed import _functional_collectives as collectives
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.fx import Graph, Node

from torchbackend import exchange, parallel

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional


def overlapped() -> None:
    """Compute weight gradients while devices exchange the gradients of batch norm's moments."""
    config.post_grad_custom_post_pass = _WeightGradientsLate()
    config.reorder_for_peak_memory = False  # or TorchInductor, for a few bytes, puts them back where they were


def one_shot() -> None:
    """Exchange by torch's kernel for small sums through NVLink, where each device writes in a place of its own."""
    _through_symmetric_memory()
    exchange._gathered = lambda x, *_: _Sums.apply(x)


def both() -> None:
    """One's exchanges forward, the other's backward."""
    overlapped()
    _through_symmetric_memory()
    exchange._gathered = lambda x, *_: _SumsForward.apply(x)


def _through_symmetric_memory() -> None:
    config._collective.auto_select = True
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    plain = parallel.join

    def join(*arguments: Any) -> None:
        plain(*arguments)
        symmetric_memory.enable_symm_mem_for_group(_everyone().group_name)

    parallel.join = join


class _SumsForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 -- torch's signature
        """Return x [1, 2, C] of every device, [N, 2, C]."""
        own = torch.arange(dist.get_world_size(), device=x.device) == dist.get_rank()
        return collectives.all_reduce(torch.where(own[:, None, None], x, 0), "sum", _everyone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the sum of all devices' gradients of this one's."""
        return collectives.reduce_scatter_tensor(gradient.contiguous(), "sum", 0, _everyone())


class _Sums(_SumsForward):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        """Return the sum of all devices' gradients of this one's, of which all are summed."""
        return collectives.all_reduce(gradient.contiguous(), "sum", _everyone())[dist.get_rank()][None]


def _everyone() -> dist.ProcessGroup:
    everyone = dist.group.WORLD
    assert everyone is not None  # all have joined
    return everyone


class _WeightGradientsLate(CustomGraphPass):
    """Takes a convolution's two gradients apart, and that of its weights as late as the next exchange lets it wait."""

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            if node.target is _ATEN.convolution_backward.default and all(node.args[-1][:2]):
                _taken_apart(graph, node)
        nodes = list(graph.nodes)
        place = {node: index for index, node in enumerate(nodes)}
        ends = [node for node in nodes if node.target is _C10D.wait_tensor.default and _is_scattered(node)]
        for node in nodes:
            if node.target is not _ATEN.convolution_backward.default or node.args[-1][0]:
                continue
            end = next((each for each in ends if place[each.all_input_nodes[0]] > place[node]), None)
            if end is not None:
                _move(nodes[place[node] : place[end]], end)
        graph.lint()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _is_scattered(end: Node) -> bool:
    return end.all_input_nodes[0].target is _C10D.reduce_scatter_tensor.default


def _taken_apart(graph: Graph, both: Node) -> None:
    """Have another node compute all but the first of what a convolution's gradient returns: images, weights, bias."""
    *inputs, wanted = both.args
    assert isinstance(wanted, (list, tuple))
    images, *others = both.meta["val"]
    with graph.inserting_after(both):
        second = graph.call_function(_ATEN.convolution_backward.default, (*inputs, [False, *wanted[1:]]))
    second.meta = both.meta | {"val": (None, *others)}
    both.args, both.meta["val"] = (*inputs, [True, False, False]), (images, None, None)
    for user in list(both.users):
        assert user.target is operator.getitem
        if user.args[1] != 0:
            user.args = (second, user.args[1])


def _move(nodes: list[Node], end: Node) -> None:
    """Move the first of these, and those that need it, before the end that follows them, unless that needs it."""
    late = {nodes[0]}
    for node in nodes:
        if late & {*node.all_input_nodes}:
            late.add(node)
    if late & {*end.all_input_nodes}:
        return
    for node in nodes:
        if node in late:
            end.prepend(node)
