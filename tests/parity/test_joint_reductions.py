"""The knob `compiled-autograd`: gradients reduced within torch's backward pass are joined in buckets."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.parity.devices import printed
from torchbackend.only import buckets

DEVICES = 2
SHAPES = [(64, 32, 3, 3), (64,), (128, 64, 3, 3), (10, 128), (10,)]
MODE = FakeTensorMode()
ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional


@pytest.fixture
def group() -> Iterator[None]:
    """Make processes that add up nothing, so that a gradient's quotient is the result."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=DEVICES)
    yield
    dist.destroy_process_group()


def values(lie: torch.memory_format) -> list[torch.Tensor]:
    """Return arrays with their four axes in this memory order."""
    drawn = torch.Generator().manual_seed(0)
    found = [torch.randn(shape, generator=drawn) for shape in SHAPES]
    return [each.contiguous(memory_format=lie) if each.ndim == 4 else each for each in found]


def traced(gradients: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], copies: Sequence[str]) -> GraphModule:
    """Return the graph that DistributedDataParallel's `python_reducer` traces.

    Torch copies a gradient that does not lie as its parameter does `before` it is reduced, and a sum, which is
    contiguous, `after`, if its parameter is not.
    """
    everyone: Any = dist.group.WORLD
    graph, ends, call = Graph(), list[Any](), buckets.call_function
    with V.set_fake_mode(MODE):
        for number, (value, parameter) in enumerate(zip(gradients, parameters, strict=True)):
            node = given = graph.placeholder(f"gradient_{number}")
            with MODE:
                node.meta["val"] = torch.empty_strided(value.shape, value.stride())
            if "before" in copies:
                lined = call(graph, ATEN.new_empty_strided.default, (node, [*value.shape], [*parameter.stride()]))
                node = given = call(graph, ATEN.copy.default, (lined, node))
            node = call(graph, ATEN.div.Tensor, (node, DEVICES))
            node = call(graph, C10D.all_reduce.default, (node, "sum", everyone.group_name))
            node = call(graph, C10D.wait_tensor.default, (node,))
            ends.append(call(graph, ATEN.copy.default, (given, node)) if "after" in copies else node)
        output = graph.output(tuple(ends))
        output.meta["original_output_strides"] = [end.meta["val"].stride() for end in ends]
        return GraphModule({}, graph)


@pytest.mark.parametrize(
    ("gradients_lie", "parameters_lie", "copies"),
    [
        (torch.channels_last, torch.channels_last, ["after"]),
        (torch.contiguous_format, torch.channels_last, ["before", "after"]),
        (torch.channels_last, torch.contiguous_format, ["before"]),
    ],
)
@pytest.mark.parametrize(("small", "megabytes", "count"), [(2**20, 25, 1), (64 * 32 * 9 * 4 + 1, 0, 4), (6000, 25, 3)])
def test_gradients_are_reduced_in_buckets_as_parameters_lie_in_memory(
    monkeypatch: pytest.MonkeyPatch,
    group: None,
    gradients_lie: torch.memory_format,
    parameters_lie: torch.memory_format,
    copies: list[str],
    small: int,
    megabytes: int,
    count: int,
) -> None:
    del group
    monkeypatch.setattr(buckets, "_SMALL", small)
    gradients, parameters = values(gradients_lie), values(parameters_lie)
    module = traced(gradients, parameters, copies)
    with V.set_fake_mode(MODE), inductor.patch(_fuse_ddp_bucket_size=megabytes):
        buckets.join(module.graph)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    assert len(module.graph.find_nodes(op="call_function", target=C10D.all_reduce.default)) == count
    assert not module.graph.find_nodes(op="call_function", target=ATEN.copy.default)
    (output,) = module.graph.find_nodes(op="output")
    strides = output.meta["original_output_strides"]
    for found, parameter, stride in zip(module(*gradients), parameters, strides, strict=True):
        assert torch.equal(found, parameter / DEVICES)
        assert found.stride() == parameter.stride() == stride


@pytest.mark.parametrize("compiled", [True, False])
def test_a_backward_pass_is_compiled_where_it_is_asked_for(compiled: bool):
    counters.clear()
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        x.grad = None
        with buckets.make_backward_context(compiled=compiled)():
            (x * x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 3
    assert counters["compiled_autograd"]["captures"] == int(compiled)  # and found again in the second step


JOINED = """
import re
import torch
import torch.distributed as dist
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.distributed.fake_pg import FakeStore
from compare.base.process_group import RankInfo
from compare.settings import tunings
from torchbackend import parallel, tuning
from torchbackend.only import buckets

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
tuning.prepare(tunings.resolve("torch", "compiled+ddp+compiled-autograd", "cpu", "vgg16"), "cpu", exchanges=False)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(16, 2))
model = model.to(memory_format=torch.channels_last)
trained = parallel.wrap(model, torch.device("cpu"), RankInfo(0, 2, 2), captured=False)
forward = torch.compile(lambda images: trained(images).float().sum(), dynamic=False)
images = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)


def step():
    with buckets.make_backward_context(compiled=True)(), torch.autocast("cpu", torch.bfloat16):
        forward(images).backward()


AsyncCompile.cpp_pybinding = lambda *_: lambda *_: None  # only the programs are read
_, programs = run_and_get_code(step)
called = re.findall(r"_c10d_functional\\.all_reduce(?:_|_out)?\\.default\\(", "".join(programs))
print(len(called), {parameter.grad.dtype for parameter in model.parameters()})
"""


def test_gradients_of_mixed_precision_are_reduced_as_one_in_a_compiled_backward_pass():
    assert printed(JOINED, devices=1) == "1 {torch.float32}\n"
