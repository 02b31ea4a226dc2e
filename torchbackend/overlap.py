"""What devices compute while they exchange batch norm's moments and their gradients: the knob `overlap-exchanges`.

TorchInductor's graph has an order. It waits for an exchange before computations that do not need it, and one call
computes both gradients of a convolution. So a pass over the graph does four things. It starts every exchange before the
first wait that the exchange does not need. It casts kernels before waits. It splits the gradients of a convolution. No
exchange needs the weights' gradient, so it moves down to the wait for the next exchange.
"""

import operator

import torch
from torch.fx import Graph, Node

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional
_CAST = torch.ops.prims.convert_element_type.default


def overlap_exchanges(graph: Graph) -> None:
    """Order a graph so that computation overlaps with exchanges."""
    _start_exchanges_early(graph)
    _cast_early(graph)
    _compute_weight_gradients_late(graph)


def _waits(graph: Graph) -> list[Node]:
    """Return the waits for batch norm's exchanges in order."""
    ends = graph.find_nodes(op="call_function", target=_C10D.wait_tensor.default, sort=True)
    return [end for end in ends if _is_forward(end) or _is_backward(end)]


def _is_forward(end: Node) -> bool:
    return end.all_input_nodes[0].target is _C10D.all_gather_into_tensor.default


def _is_backward(end: Node) -> bool:
    """Tell whether a wait is for two sums [2, C] and not for a bucket of gradients."""
    start = end.all_input_nodes[0]
    return start.target is _C10D.all_reduce.default and [*start.all_input_nodes[0].meta["val"].shape[:-1]] == [2]


def _start_exchanges_early(graph: Graph) -> None:
    # Where a block's input goes two ways, one exchange waits for another that it does not need.
    waits = _waits(graph)
    for start in [end.all_input_nodes[0] for end in waits]:
        nodes = list(graph.nodes)
        place = {node: index for index, node in enumerate(nodes)}
        needed = {start}
        for node in reversed(nodes[: place[start]]):
            if needed & {*node.users}:
                needed.add(node)
        wait = next((end for end in waits if end not in needed and place[end] < place[start]), None)
        if wait is not None:
            for node in nodes[place[wait] : place[start] + 1]:
                if node in needed:
                    wait.prepend(node)


def _cast_early(graph: Graph) -> None:
    # In the forward pass only: in the backward pass, casts are part of larger kernels.
    wait, ends = None, {end for end in _waits(graph) if _is_forward(end)}
    for node in list(graph.nodes):
        if node in ends:
            wait = node
        elif wait is not None and node.target is _CAST and node.all_input_nodes[0].op == "placeholder":
            wait.prepend(node)


def _compute_weight_gradients_late(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.target is _ATEN.convolution_backward.default and all(node.args[-1][:2]):
            _split_gradients(graph, node)
    nodes = list(graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    ends = [end for end in _waits(graph) if _is_backward(end)]
    for node in nodes:
        if node.target is not _ATEN.convolution_backward.default or node.args[-1][0]:
            continue
        end = next((wait for wait in ends if place[wait.all_input_nodes[0]] > place[node]), None)
        if end is not None:
            _move(nodes[place[node] : place[end]], end)


def _split_gradients(graph: Graph, both: Node) -> None:
    """Let one node compute a convolution's gradient of images, and another those of weights and bias."""
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
    """Move the first node, and the nodes that need it, to `end`, which follows them. Do nothing if `end` needs it."""
    late = {nodes[0]}
    for node in nodes:
        if late & {*node.all_input_nodes}:
            late.add(node)
    if late & {*end.all_input_nodes}:
        return
    for node in nodes:
        if node in late:
            end.prepend(node)
