"""What devices compute while they exchange batch norm's moments and their gradients: the knob `overlap-exchanges`.

TorchInductor waits for an exchange before it computes what does not need it, and has both gradients of a convolution by
one call. So a pass over its graph puts between an exchange and the wait for it, in either direction, all that another
exchange needs and this one does not give, as where a block's input goes two ways; in the forward pass casts of weights;
and in the backward pass weight gradients, taken apart from those of images.
"""

import operator
from collections.abc import Collection, Sequence

import torch
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._ops import OpOverload
from torch.fx import Graph, Node

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional
_CAST = torch.ops.prims.convert_element_type.default
_GATHER, _SCATTER = _C10D.all_gather_into_tensor.default, _C10D.reduce_scatter_tensor.default
_EXCHANGES = _GATHER, _SCATTER


def exchanges(*, wanted: bool) -> None:
    """Have TorchInductor order what it compiles from now on so, or as it does."""
    inductor.post_grad_custom_post_pass = _Overlapped() if wanted else None
    inductor.reorder_for_peak_memory = not wanted  # it would, for a few bytes, put them back where they were


def is_on() -> bool:
    """Whether it does."""
    return isinstance(inductor.post_grad_custom_post_pass, _Overlapped)


class _Overlapped(CustomGraphPass):
    def __call__(self, graph: Graph) -> None:
        _exchanges_early(graph)
        _casts_early(graph)
        _weight_gradients_late(graph)
        graph.lint()

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


def _waits(graph: Graph, *kinds: OpOverload) -> list[Node]:
    ends = graph.find_nodes(op="call_function", target=_C10D.wait_tensor.default)
    return [end for end in ends if end.all_input_nodes[0].target in kinds]


def _exchanges_early(graph: Graph) -> None:
    """Begin every exchange, and what it needs, before the first wait that it does not need."""
    waits = _waits(graph, *_EXCHANGES)
    for start in [end.all_input_nodes[0] for end in waits]:
        nodes = list(graph.nodes)
        place = {node: index for index, node in enumerate(nodes)}
        needed = {start}
        for node in reversed(nodes[: place[start]]):
            if needed & {*node.users}:
                needed.add(node)
        wait = next((each for each in waits if each not in needed and place[each] < place[start]), None)
        if wait is not None:
            _move(nodes[place[wait] : place[start] + 1], needed, wait)


def _casts_early(graph: Graph) -> None:
    """Cast parameters in the forward pass before a wait and not after it."""
    wait, ends = None, {*_waits(graph, _GATHER)}
    for node in list(graph.nodes):
        if node in ends:
            wait = node
        elif wait is not None and node.target is _CAST and node.all_input_nodes[0].op == "placeholder":
            wait.prepend(node)


def _weight_gradients_late(graph: Graph) -> None:
    """Compute weight gradients, and what needs them, before the wait for the next exchange, unless that needs them."""
    for node in list(graph.nodes):
        if node.target is _ATEN.convolution_backward.default and all(node.args[-1][:2]):
            _taken_apart(graph, node)
    nodes = list(graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    ends = _waits(graph, _SCATTER)
    for node in nodes:
        if node.target is not _ATEN.convolution_backward.default or node.args[-1][0]:
            continue
        end = next((each for each in ends if place[each.all_input_nodes[0]] > place[node]), None)
        if end is None:
            continue
        passed, late = nodes[place[node] : place[end]], {node}
        for each in passed:
            if late & {*each.all_input_nodes}:
                late.add(each)
        if not late & {*end.all_input_nodes}:
            _move(passed, late, end)


def _move(nodes: Sequence[Node], some: Collection[Node], end: Node) -> None:
    """Move some of these, as they follow one another, before the end."""
    for node in nodes:
        if node in some:
            end.prepend(node)


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
