"""The lever that begins exchanges and casts earlier keeps what needs a wait behind it."""

import pytest
import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from benchmarks import exchange_levers

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional


def _ordered(graph: Graph) -> list[str]:
    exchange_levers._exchanges_early(graph)
    exchange_levers._casts_early(graph)
    graph.lint()
    return [str(node.target).rpartition(".default")[0].rpartition(".")[2] for node in graph.nodes]


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
