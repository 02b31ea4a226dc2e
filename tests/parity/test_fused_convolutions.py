"""The knob `fused-convolutions`: torch's graphs call one operator for convolution, sum and ReLU. It has a CPU form."""

from collections import Counter
from collections.abc import Generator

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch.fx import Graph
from torch.nn import functional

from torchbackend.only import fused_convolutions, graph_passes


class Network(nn.Module):
    """Convolutions that ReLU reads alone, through a sum, or beside another reader."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1, bias=False)
        self.strided, self.last = nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(8, 8, 1)

    def forward(self, images: Tensor) -> Tensor:
        outputs = functional.relu(self.first(images))
        outputs = functional.relu(images + self.second(outputs))
        outputs = functional.relu(self.strided(outputs))
        last = self.last(outputs)
        return functional.relu(last) + last


@pytest.fixture
def kinds() -> Generator[Counter[str]]:
    """Count the operators of the graphs that are compiled with the pass."""
    counts = Counter[str]()

    def fuse(graph: Graph) -> None:
        fused_convolutions.fuse(graph)
        counts.update(str(node.target) for node in graph.nodes if node.op == "call_function")

    torch.compiler.reset()
    graph_passes.use_passes([fuse])
    yield counts
    graph_passes.use_passes([])


def run(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the answers of the compiled network and of the same network without a compiler."""
    torch.manual_seed(0)
    network = Network().eval().requires_grad_(False).to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(2, 8, 9, 9, dtype=dtype).to(memory_format=torch.channels_last)
    with torch.no_grad(), functorch.patch(enable_autograd_cache=False), inductor.patch(fx_graph_cache=False):
        return torch.compile(network, dynamic=False)(images), network(images)


def test_three_of_four_convolutions_are_fused_and_answer_the_same(kinds: Counter[str]) -> None:
    compiled, plain = run(torch.float32)
    torch.testing.assert_close(compiled, plain)
    assert compiled.stride() == plain.stride()
    fused = {kind: count for kind, count in kinds.items() if "conv" in kind}
    assert fused == {"samestep.convolve_relu.default": 3, "aten.convolution.default": 1}, "the last has two readers"


def test_in_float64_nothing_is_fused(kinds: Counter[str]) -> None:
    compiled, plain = run(torch.float64)
    torch.testing.assert_close(compiled, plain)
    assert kinds["aten.convolution.default"] == 4, "cuDNN has no such kernel"
