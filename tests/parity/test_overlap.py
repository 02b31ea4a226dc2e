"""The knob `overlap-exchanges`: the dependencies of gradients in JAX's programs, and their order in torch's."""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx
from jax.extend import core
from jax.sharding import AbstractMesh, PartitionSpec
from torch._inductor import config as inductor
from torch._ops import OpOverload
from torch.fx import Graph, Node

from compare.base import workloads
from compare.settings import tunings
from jaxbackend import layers, models, precision
from jaxbackend import overlap as overlap_jax
from jaxbackend.exchange import AXIS
from jaxbackend.only import sharded_layers
from torchbackend import overlap, tuning
from torchbackend.only import graph_passes

MESH = AbstractMesh((2,), (AXIS,))
ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional


def _split(function: Callable[..., Any], parameters: Any, way: str) -> Callable[[jax.Array], Any]:
    """Return a function of images and parameters on two devices, either mapped or whole with copies."""
    if way == "pmap":
        split, whole = PartitionSpec(AXIS), PartitionSpec()
        mapped = jax.shard_map(function, mesh=MESH, in_specs=(split, whole), out_specs=split, check_vma=False)
        return lambda images: mapped(images, parameters)
    copies = jax.tree.map(lambda array: jnp.broadcast_to(array, (MESH.size, *array.shape)), parameters)
    return lambda images: function(images, copies)


def _gradient(way: str, *, wanted: bool, channels: int = 4) -> core.Jaxpr:
    """Return the program of a loss's gradient by the input of a batch norm, with a convolution after it."""
    policy = precision.Policy(jnp.float32, jnp.float32, None, None, synchronised=True)
    model = nnx.List([layers.BatchNorm(4, policy=policy), layers.Conv(channels, 3, 1, policy=policy, bias=False)])
    graph, parameters, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)

    def loss(x: jax.Array, parameters: Any) -> jax.Array:
        norm, conv = made = nnx.merge(graph, parameters, statistics, copy=True)
        with (
            sharded_layers.shard(made, MESH if way == "sharded" else None),
            overlap_jax.overlap_exchanges(wanted=wanted),
        ):
            return jnp.sin(conv(jnp.pad(norm(x), (*((0, 0),) * 3, (0, channels - 4))))).sum()

    return jax.make_jaxpr(_split(jax.grad(loss), parameters, way))(jnp.ones((4, 2, 2, 4))).jaxpr


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


def _needed(program: core.Jaxpr, variables: Iterable[Any]) -> set[str]:
    """Return the names of all operations that these variables of a program need, with those within them."""
    needed, found = set(variables), set[str]()
    for equation in reversed(program.eqns):
        if needed & set(equation.outvars):
            needed |= {each for each in equation.invars if isinstance(each, core.Var)}
            within = {each.primitive.name for inner in _inner(equation) for each in inner.eqns}
            found |= within | {equation.primitive.name}
    return found


@pytest.mark.parametrize("way", ["pmap", "sharded"])
def test_a_batch_norm_s_gradient_waits_for_the_next_layer_s_kernel_s_and_its_exchange_does_not(way: str):
    assert _count(_gradient(way, wanted=False), "conv_general_dilated") == 2  # forward, and the gradient of its inputs
    program = _gradient(way, wanted=True)
    assert _count(program, "conv_general_dilated") == 3
    assert "optimization_barrier" in _needed(program, program.outvars)
    if way == "pmap":  # in sharded, a layer's gradients are one operation of the whole until XLA splits it
        inner = next(_inner(program.eqns[-1]))
        (exchange,) = (eqn for eqn in inner.eqns if eqn.primitive.name == "reduce_scatter")
        assert "optimization_barrier" in _needed(inner, inner.outvars)
        assert "optimization_barrier" not in _needed(inner, exchange.invars)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("cifar-cnn", "pmap"),
        ("resnet50", "pmap"),
        ("cifar-resnet18", "sharded"),
        ("mobilenet-v2", "pmap"),
        ("unet", "sharded"),
    ],
)
def test_every_batch_norm_s_ticket_is_taken(name: str, way: str):
    spec = workloads.get(name).model.resized(32)
    model = models.build(spec, precision.Policy(jnp.float32, jnp.float32, None, None, synchronised=True))
    graph, parameters, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    norms, taken = sum(isinstance(each, layers.BatchNorm) for _, each in nnx.iter_modules(model)), list[int]()

    def forward(x: jax.Array, parameters: Any) -> jax.Array:
        made: Any = nnx.merge(graph, parameters, statistics, copy=True)
        mesh = MESH if way == "sharded" else None
        with sharded_layers.shard(made, mesh), overlap_jax.overlap_exchanges(wanted=True) as found:
            y = made(x)
        taken.append(found())
        return y

    jax.eval_shape(_split(forward, parameters, way), jnp.ones((4, *spec.image)))
    assert taken == [norms]


@pytest.mark.parametrize("way", ["pmap", "sharded"])
def test_a_layer_of_other_channels_takes_no_ticket(way: str):
    assert _count(_gradient(way, wanted=True, channels=5), "conv_general_dilated") == 2


def test_no_ticket_outlasts_its_forward_pass():
    kernel = jnp.ones((1, 1, 4, 3))
    with overlap_jax.overlap_exchanges(wanted=True) as outer:
        overlap_jax.hold(jnp.ones((2, 4)))
        with overlap_jax.overlap_exchanges(wanted=True) as inner:
            overlap_jax.take_tickets(kernel, 4)
        overlap_jax.take_tickets(kernel, 4)
        overlap_jax.take_tickets(kernel, 4)
    assert (outer(), inner()) == (1, 0)
    with overlap_jax.overlap_exchanges(wanted=False) as none:
        overlap_jax.take_tickets(kernel, overlap_jax.hold(jnp.ones((2, 4))).shape[-1])
    assert none() == 0


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
    overlap.overlap_exchanges(graph)
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
    overlap.overlap_exchanges(graph)
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


@pytest.mark.parametrize(("asked", "exchanges"), [(True, True), (True, False), (False, True)])
def test_nothing_puts_back_for_memory_what_is_ordered_so_where_there_are_exchanges(asked: bool, exchanges: bool):
    names = ("_fuse_ddp_communication_passes", "post_grad_custom_post_pass", "reorder_for_peak_memory")
    with inductor.patch({name: getattr(inductor, name) for name in names}):
        knobs = tunings.resolve("torch", f"compiled+ddp{'+overlap-exchanges' * asked}", "cpu", "cifar-cnn")
        tuning.prepare(knobs, "cpu", exchanges=exchanges)
        ordered = asked and exchanges
        assert (graph_passes.uses_pass(overlap.overlap_exchanges), inductor.reorder_for_peak_memory) == (
            ordered,
            not ordered,
        )
