"""What devices compute while they exchange the gradients of batch norm's moments: the knob `overlap-exchanges`.

Nothing but the gradient of a batch norm's input waits for them. TorchInductor waits for an exchange before it computes
what does not need it, and has both gradients of a convolution by one call. So a pass over its graph takes these apart,
and puts that of the weights as late as the wait for the next exchange.
"""

import operator

import torch
from torch.fx import Graph, Node

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional


def weight_gradients_late(graph: Graph) -> None:
    """Have each computed between the start of an exchange of batch norm's and the wait for it, if that needs it not."""
    for node in list(graph.nodes):
        if node.target is _ATEN.convolution_backward.default and all(node.args[-1][:2]):
            _taken_apart(graph, node)
    nodes = list(graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    ends = [node for node in nodes if node.target is _C10D.wait_tensor.default and _is_of_batch_norm(node)]
    for node in nodes:
        if node.target is not _ATEN.convolution_backward.default or node.args[-1][0]:
            continue
        end = next((each for each in ends if place[each.all_input_nodes[0]] > place[node]), None)
        if end is not None:
            _move(nodes[place[node] : place[end]], end)


def _is_of_batch_norm(end: Node) -> bool:
    """Whether what is waited for is two sums [2, C]: a bucket of gradients in the same graph has one axis."""
    start = end.all_input_nodes[0]
    return start.target is _C10D.all_reduce.default and start.all_input_nodes[0].meta["val"].ndim > 1


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
