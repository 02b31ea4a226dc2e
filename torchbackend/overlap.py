"""What devices compute while they exchange batch norm's moments and their gradients: the knob `overlap-exchanges`.

TorchInductor's graph has an order, in which it waits for an exchange before it computes what does not need it, and it
has both gradients of a convolution by one call. So a pass over that graph begins every exchange before the first wait
that it does not need, casts kernels before waits, takes a convolution's gradients apart, and puts that of the weights,
which no exchange needs, as late as the wait for the next one.
"""

import operator

import torch
from torch.fx import Graph, Node

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional
_CAST = torch.ops.prims.convert_element_type.default


def beside_exchanges(graph: Graph) -> None:
    """Order a graph so."""
    _exchanges_early(graph)
    _casts_early(graph)
    _weight_gradients_late(graph)


def _waits(graph: Graph) -> list[Node]:
    """Return in order the waits for exchanges of batch norm's."""
    ends = graph.find_nodes(op="call_function", target=_C10D.wait_tensor.default, sort=True)
    return [end for end in ends if _is_forward(end) or _is_backward(end)]


def _is_forward(end: Node) -> bool:
    return end.all_input_nodes[0].target is _C10D.all_gather_into_tensor.default


def _is_backward(end: Node) -> bool:
    """Whether what is waited for is two sums [2, C], and not a bucket of gradients."""
    start = end.all_input_nodes[0]
    return start.target is _C10D.all_reduce.default and [*start.all_input_nodes[0].meta["val"].shape[:-1]] == [2]


def _exchanges_early(graph: Graph) -> None:
    # One waits for another that it does not need where a block's input goes two ways.
    waits = _waits(graph)
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
    # In the forward pass alone: backward, casts are part of larger kernels.
    wait, ends = None, {end for end in _waits(graph) if _is_forward(end)}
    for node in list(graph.nodes):
        if node in ends:
            wait = node
        elif wait is not None and node.target is _CAST and node.all_input_nodes[0].op == "placeholder":
            wait.prepend(node)


def _weight_gradients_late(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.target is _ATEN.convolution_backward.default and all(node.args[-1][:2]):
            _taken_apart(graph, node)
    nodes = list(graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    ends = [end for end in _waits(graph) if _is_backward(end)]
    for node in nodes:
        if node.target is not _ATEN.convolution_backward.default or node.args[-1][0]:
            continue
        end = next((each for each in ends if place[each.all_input_nodes[0]] > place[node]), None)
        if end is not None:
            _move(nodes[place[node] : place[end]], end)


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
