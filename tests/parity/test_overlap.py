"""The knob `overlap-exchanges`: which gradients wait for which, in the programs of both backends."""

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.extend import core
from jax.sharding import AbstractMesh, PartitionSpec
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from jaxbackend import layers, overlap, precision
from jaxbackend.parallel import AXIS
from torchbackend import overlap as overlap_torch

MESH = AbstractMesh((2,), (AXIS,))
ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional


def _gradient(over: Any, *, wanted: bool, channels: int = 4) -> core.Jaxpr:
    """Return the program of a loss's gradient with regard to what a batch norm normalises, a convolution behind it."""
    policy = precision.Policy(jnp.float32, jnp.float32, None, None, over=over)

    def loss(x: jax.Array) -> jax.Array:
        norm = layers.BatchNorm(4, policy=policy)
        conv = layers.Conv(channels, 3, 1, policy=policy, bias=False)
        with overlap.exchanges(wanted=wanted):
            y = jnp.pad(norm(x), (*((0, 0),) * 3, (0, channels - 4)))
            return jnp.sin(conv(y)).sum()

    gradient = jax.grad(loss)
    if over is AXIS:
        parts = PartitionSpec(AXIS)
        gradient = jax.shard_map(gradient, mesh=MESH, in_specs=parts, out_specs=parts, check_vma=False)
    return jax.make_jaxpr(gradient)(jnp.ones((4, 2, 2, 4))).jaxpr


def _programs(jaxpr: core.Jaxpr) -> Iterator[core.Jaxpr]:
    """Yield a program and all those within it."""
    yield jaxpr
    for equation in jaxpr.eqns:
        yield from _inner(equation)


def _inner(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for each in equation.params.values():
        if isinstance(each, core.ClosedJaxpr):
            yield from _programs(each.jaxpr)
        elif isinstance(each, core.Jaxpr):
            yield from _programs(each)


def _count(jaxpr: core.Jaxpr, name: str) -> int:
    return sum(equation.primitive.name == name for program in _programs(jaxpr) for equation in program.eqns)


@pytest.mark.parametrize("over", [AXIS, MESH], ids=["pmap", "sharded"])
def test_a_batch_norm_s_gradient_waits_for_the_next_layer_s_kernel_s_and_its_exchange_does_not(over: Any):
    assert _count(_gradient(over, wanted=False), "conv_general_dilated") == 2  # forward, and the gradient of its inputs
    program = _gradient(over, wanted=True)
    assert _count(program, "conv_general_dilated") == 3
    assert "optimization_barrier" in _needed(program, program.outvars)
    if over is AXIS:  # where XLA splits a program, a layer's gradients are one operation until it does
        inner = next(_inner(program.eqns[-1]))
        (exchange,) = (eqn for eqn in inner.eqns if eqn.primitive.name == "reduce_scatter")
        assert "optimization_barrier" in _needed(inner, inner.outvars)
        assert "optimization_barrier" not in _needed(inner, exchange.invars)


def test_a_layer_of_other_channels_takes_no_ticket():
    for over in (AXIS, MESH):
        assert _count(_gradient(over, wanted=True, channels=5), "conv_general_dilated") == 2


def test_no_ticket_outlasts_its_forward_pass():
    with overlap.exchanges(wanted=True):
        overlap.held(jnp.ones((2, 4)), AXIS)
        with overlap.exchanges(wanted=True):
            assert overlap.by_ticket(jnp.sin, jnp.ones((2, 4)))[1] == ()
        assert len(overlap.by_ticket(jnp.sin, jnp.ones((2, 4)))[1]) == 1
        assert overlap.by_ticket(jnp.sin, jnp.ones((2, 4)))[1] == ()
    assert overlap.held(jnp.ones((2, 4)), AXIS).shape == (2, 4)
    assert overlap.by_ticket(jnp.sin, jnp.ones((2, 4)))[1] == ()


def _needed(program: core.Jaxpr, variables: Iterable[Any]) -> set[str]:
    """Return the names of all operations that these variables of a program need, with those within them."""
    needed, found = set(variables), set[str]()
    for equation in reversed(program.eqns):
        if needed & set(equation.outvars):
            needed |= {each for each in equation.invars if isinstance(each, core.Var)}
            found |= {each.primitive.name for inner in _inner(equation) for each in inner.eqns} | {
                equation.primitive.name
            }
    return found


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
    started = graph.call_function(C10D.reduce_scatter_tensor.default, (sums, "sum", 2, "0"))
    other = graph.call_function(ATEN.exp.default, (image,))
    waited = graph.call_function(C10D.wait_tensor.default, (started,))
    graph.output((images, cast, waited, other))
    return graph


def _ordered(graph: Graph) -> list[str]:
    overlap_torch.exchanges(wanted=True)
    order = inductor.post_grad_custom_post_pass
    assert isinstance(order, CustomGraphPass)
    order(graph)
    return [str(node.target).rpartition(".default")[0].rpartition(".")[2] for node in graph.nodes]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    overlap_torch.exchanges(wanted=False)


def test_weight_gradients_are_put_between_an_exchange_and_the_wait_for_it():
    graph = _graph()
    assert _ordered(graph)[3:] == [
        *("convolution_backward", "", "sum", "reduce_scatter_tensor", "exp"),
        *("convolution_backward", "", "neg", "wait_tensor", ""),
    ]
    first, second = (node for node in graph.nodes if node.target is ATEN.convolution_backward.default)
    assert (first.args[-1], second.args[-1]) == ([True, False, False], [False, True, False])
    assert [node.args[0] for node in graph.nodes if node.target is operator.getitem] == [first, second]


def test_a_weight_gradient_that_an_exchange_needs_stays_before_it():
    found = _ordered(_graph(needed=True))
    assert found[-5:] == ["sum", "reduce_scatter_tensor", "exp", "wait_tensor", ""]


def test_a_layer_whose_kernel_has_no_part_in_it_is_a_fault_of_ours():
    with overlap.exchanges(wanted=True):
        overlap.held(jnp.ones((2, 4)), AXIS)
        layer, ticket = overlap.by_ticket(jnp.sin, jnp.ones((2, 4)))
        with pytest.raises(AssertionError, match="before_ticket"):
            layer(jnp.ones((2, 4)), *ticket)
