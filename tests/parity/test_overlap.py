"""The knob `overlap-exchanges`: which gradients are computed while devices exchange others."""

import operator

import pytest
import torch
from torch._inductor import config as inductor
from torch._ops import OpOverload
from torch.fx import Graph, Node

from compare.tuning import tunings
from torchbackend import overlap, tuning

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional


def _graph(*, needed: bool = False) -> Graph:
    """Return a convolution's gradients, an exchange of its images' and the wait for it, and a use of all three.

    Of a weight gradient that is `needed`, the wait has a use.
    """
    graph = Graph()
    image, kernel, gradient = (graph.placeholder(name) for name in ("image", "kernel", "gradient"))
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    both = graph.call_function(
        ATEN.convolution_backward.default, (gradient, image, kernel, [0], *rest, [True, True, False])
    )
    both.meta["val"] = (torch.ones(1), torch.ones(2), None)
    images, weights = (graph.call_function(operator.getitem, (both, index)) for index in (0, 1))
    cast = graph.call_function(ATEN.neg.default, (weights,))
    sums = graph.call_function(ATEN.sum.default, (cast if needed else images,))
    sums.meta["val"] = torch.ones(2, 3)
    started = graph.call_function(C10D.all_reduce.default, (sums, "sum", "0"))
    other = graph.call_function(ATEN.exp.default, (image,))
    waited = graph.call_function(C10D.wait_tensor.default, (started,))
    graph.output((images, cast, waited, other))
    return graph


def _ordered(graph: Graph) -> list[str]:
    overlap.beside_exchanges(graph)
    graph.lint()
    return [str(node.target).rpartition(".default")[0].rpartition(".")[2] for node in graph.nodes]


def test_weight_gradients_are_put_between_an_exchange_and_the_wait_for_it():
    graph = _graph()
    assert _ordered(graph)[3:] == [
        *("convolution_backward", "", "sum", "all_reduce", "exp"),
        *("convolution_backward", "", "neg", "wait_tensor", ""),
    ]
    first, second = (node for node in graph.nodes if node.target is ATEN.convolution_backward.default)
    assert (first.args[-1], second.args[-1]) == ([True, False, False], [False, True, False])
    assert [node.args[0] for node in graph.nodes if node.target is operator.getitem] == [first, second]


def test_a_weight_gradient_that_an_exchange_needs_stays_before_it():
    found = _ordered(_graph(needed=True))
    assert found[-5:] == ["sum", "all_reduce", "exp", "wait_tensor", ""]


def test_a_weight_gradient_is_not_put_beside_the_reduction_of_others():
    graph = _graph()
    (started,) = graph.find_nodes(op="call_function", target=C10D.all_reduce.default)
    started.args[0].meta["val"] = torch.ones(6)  # a bucket
    before = [node.name for node in graph.nodes]
    overlap.beside_exchanges(graph)
    assert [node.name for node in graph.nodes if node.name in before] == before


def _exchanged(graph: Graph, value: Node, kind: OpOverload) -> Node:
    """Return the wait for an exchange."""
    value.meta["val"] = torch.ones(2, 3)
    started = graph.call_function(kind, (value, "sum" if kind is C10D.all_reduce.default else 2, "0"))
    return graph.call_function(C10D.wait_tensor.default, (started,))


@pytest.mark.parametrize("kind", [C10D.all_gather_into_tensor.default, C10D.all_reduce.default])
@pytest.mark.parametrize("needed", [True, False])
def test_an_exchange_begins_before_the_first_wait_that_it_does_not_need(kind: OpOverload, needed: bool):
    graph = Graph()
    image = graph.placeholder("image")
    first = _exchanged(graph, graph.call_function(ATEN.neg.default, (image,)), kind)
    used = graph.call_function(ATEN.exp.default, (first,))
    cast = graph.call_function(ATEN.sqrt.default, (used if needed else image,))
    second = _exchanged(graph, graph.call_function(ATEN.sum.default, (cast,)), kind)
    graph.output((used, second))
    exchange = kind.name().rpartition("::")[2]
    other = ["sqrt", "sum", exchange]
    ends = ["wait_tensor", "exp", *other] if needed else [*other, "wait_tensor", "exp"]
    assert _ordered(graph)[1:] == ["neg", exchange, *ends, "wait_tensor", ""]


@pytest.mark.parametrize(
    ("kind", "of_a_parameter", "early"),
    [
        (C10D.all_gather_into_tensor.default, True, True),
        (C10D.all_gather_into_tensor.default, False, False),
        (C10D.all_reduce.default, True, False),  # backward, where casts are part of larger kernels
    ],
)
def test_parameters_are_cast_before_a_wait(kind: OpOverload, of_a_parameter: bool, early: bool):
    graph = Graph()
    image, kernel = (graph.placeholder(name) for name in ("image", "kernel"))
    waited = _exchanged(graph, image, kind)
    used = graph.call_function(ATEN.exp.default, (waited,))
    given = kernel if of_a_parameter else graph.call_function(ATEN.neg.default, (kernel,))
    cast = graph.call_function(torch.ops.prims.convert_element_type.default, (given, torch.bfloat16))
    graph.output((used, cast))
    found = _ordered(graph)
    assert (found.index("convert_element_type") < found.index("wait_tensor")) is early


@pytest.mark.parametrize("wanted", [True, False])
def test_nothing_puts_back_for_memory_what_is_ordered_so(wanted: bool):
    names = ("_fuse_ddp_communication_passes", "post_grad_custom_post_pass", "reorder_for_peak_memory")
    with inductor.patch({name: getattr(inductor, name) for name in names}):
        knobs = tunings.resolve("torch", f"compiled+ddp{'+overlap-exchanges' * wanted}", "cpu", "cifar-cnn")
        tuning.prepare(knobs, "cpu", exchanges=True)
        assert (tuning.changes(overlap.beside_exchanges), inductor.reorder_for_peak_memory) == (wanted, not wanted)
