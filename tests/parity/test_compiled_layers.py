"""Torch's layers, written out for TorchInductor, compute the same as torch's kernels and store little."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor.utils import run_fw_bw_and_get_code
from torch.nn import functional

import torchbackend.gradients
import torchbackend.layers
import torchbackend.precision

WINDOWS = {
    "2, 2": (2, 2, 0),
    "3, 2, padded": (3, 2, 1),
    "3, 1, padded": (3, 1, 1),
    "2, 3": (2, 3, 0),
    "3, 2": (3, 2, 0),
    "5, 16": (5, 16, 0),
    "9, 4, padded": (9, 4, 4),
}
IMAGES = (8, 4, 6, 6)
CASES = [((9, 8), torch.float64, 1e-13), ((5, 6), torch.float64, 1e-13), ((5, 6), torch.bfloat16, 2e-2)]


@pytest.fixture(autouse=True)
def programs_of_its_own(compiler: None) -> Iterator[None]:
    del compiler
    yield
    torch.compiler.reset()  # programs count against the limit of recompilations


class SideBySide(nn.Module):
    """Several layers in one program, because compiling takes most of the time of these tests."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *images: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer, x in zip(self.layers, images, strict=True)]


Results = list[tuple[torch.Tensor, torch.Tensor, nn.Module]]


def both_of_several(
    layers: Sequence[nn.Module], images: Sequence[torch.Tensor], backend: str = "aot_eager"
) -> Iterator[Results]:
    """Return outputs, gradients of inputs, and layers: of torch's own kernels, and of one compiled program."""
    plain, written = SideBySide(copy.deepcopy(layers)), SideBySide(layers)
    weights = list[torch.Tensor]()
    for module, call in ((plain, plain), (written, torch.compile(written, backend=backend, dynamic=False))):
        inputs = [x.clone().requires_grad_() for x in images]
        outputs = call(*inputs)
        torch.manual_seed(1)
        weights = weights or [torch.randn_like(output) for output in outputs]
        torch.autograd.backward(outputs, weights)
        gradients = [x.grad for x in inputs if x.grad is not None]
        yield list(zip([output.detach() for output in outputs], gradients, module.layers, strict=True))


def both(
    layer: nn.Module, x: torch.Tensor, backend: str = "aot_eager"
) -> Iterator[tuple[torch.Tensor, torch.Tensor, nn.Module]]:
    """Return the output, the input's gradient and the layer of torch's own kernels and of the compiled program."""
    for (result,) in both_of_several([layer], [x], backend):
        yield result


def test_written_out_max_pools_are_torch_s():
    """Try every window on one size of images, and one of them on another size and in bfloat16."""
    cases = [(window, *CASES[0]) for window in WINDOWS.values()]
    cases += [(WINDOWS["3, 2, padded"], *case) for case in CASES[1:]]
    torch.manual_seed(0)
    layers, images = list[nn.Module](), list[torch.Tensor]()
    for (size, stride, padding), sides, dtype, _ in cases:
        anything, ties, broken = torch.randn(3, 2, 3, *sides, dtype=dtype) - 5
        broken[1, 2, 3, 4] = torch.nan
        layers.append(torchbackend.layers.MaxPool(size, stride=stride, padding=padding))
        images.append(torch.cat([anything, ties.round(), broken]))
    for case, own, ours in zip(cases, *both_of_several(layers, images), strict=True):
        torch.testing.assert_close(ours[0], own[0], rtol=0, atol=0, equal_nan=True, msg=f"{case}")
        torch.testing.assert_close(ours[1], own[1], rtol=case[-1], atol=case[-1], msg=f"{case}")


def test_a_max_pool_s_gradient_is_in_nhwc_where_its_images_are():
    x = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    images, seen = x * 1, list[torch.Tensor]()
    images.register_hook(seen.append)
    torchbackend.gradients.max_pool(images, 3, 2, 1).square().sum().backward()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


STEMS = {
    "7, 2, padded": (7, 2, 3),
    "3, 2, padded": (3, 2, 1),
    "4, 4": (4, 4, 0),
    "2, 3": (2, 3, 0),
    "3, 1, padded": (3, 1, 1),
    "3, 1": (3, 1, 0),
}


@pytest.mark.parametrize(("sides", "dtype", "rounding"), CASES)
def test_written_out_stems_are_torch_s(sides: tuple[int, int], dtype: torch.dtype, rounding: float):
    torch.manual_seed(0)
    policy = torchbackend.precision.policy("float64", "cpu")
    layers = [
        torchbackend.layers.Conv(3, 5, size, policy=policy, stride=stride, padding=padding, bias=bias).to(dtype)
        for size, stride, padding in STEMS.values()
        for bias in (True, False)
    ]
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
    images = [torch.randn(2, 3, *sides, dtype=dtype).to(memory_format=torch.channels_last) for _ in layers]
    cases = [f"{stem}, bias: {bias}" for stem in STEMS for bias in (True, False)]
    for case, own, ours in zip(cases, *both_of_several(layers, images), strict=True):
        written = dict(ours[2].named_parameters())
        compared = [(ours[0], own[0]), (ours[1], own[1])]
        compared += [(written[name].grad, parameter.grad) for name, parameter in own[2].named_parameters()]
        for one, other in compared:  # sums of 147 products
            torch.testing.assert_close(one, other, rtol=rounding, atol=50 * rounding, msg=f"{case}")


def test_a_compiled_stem_has_no_stride():
    policy, strides = torchbackend.precision.policy("float32", "cpu"), list[int]()

    def note(graph: torch.fx.GraphModule, _: Sequence[torch.Tensor]) -> Callable[..., Any]:
        found = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
        strides.extend(each.args[3][0] for each in found)
        return make_boxed_func(graph.forward)

    for inputs, groups, order in (
        (3, 1, torch.channels_last),
        (8, 1, torch.channels_last),
        (3, 3, torch.channels_last),
        (3, 1, torch.contiguous_format),  # it would bring another memory order
    ):
        torch.compiler.reset()
        layer = torchbackend.layers.Conv(inputs, 2 * inputs, 3, policy=policy, stride=2, padding=1, groups=groups)
        x = torch.randn(2, inputs, 8, 8).to(memory_format=order)
        torch.compile(layer, dynamic=False, backend=aot_autograd(fw_compiler=note))(x).sum().backward()
    assert strides == [1, 2, 2, 2]


@pytest.mark.parametrize("mean", [0.0, 1e4], ids=["centred", "far from zero"])
def test_a_written_out_batch_norm_is_torch_s(mean: float):
    torch.manual_seed(0)
    layer = torchbackend.layers.BatchNorm(3, policy=torchbackend.precision.policy("float64", "cpu"), momentum=0.3)
    for tensor in layer.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    x = torch.randn(4, 3, 5, 6, dtype=torch.float64) + mean
    (own, own_gradient, plain), (ours, our_gradient, written) = both(layer, x)
    near = 1e-9 if mean else 1e-12
    torch.testing.assert_close(ours, own, rtol=near, atol=near)
    torch.testing.assert_close(our_gradient, own_gradient, rtol=near, atol=near)
    for name, value in plain.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(written.state_dict()[name], value, rtol=near, atol=near)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(written.get_parameter(name).grad, parameter.grad, rtol=1e-7, atol=1e-7)


def test_a_compiled_batch_norm_evaluates_with_its_running_statistics():
    torch.manual_seed(0)
    layer = torchbackend.layers.BatchNorm(3, policy=torchbackend.precision.policy("float64", "cpu")).eval()
    x = torch.randn(4, 3, 5, 6, dtype=torch.float64) + 2
    (own, _, _), (ours, _, _) = both(layer, x)
    torch.testing.assert_close(ours, own, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(ours, x, rtol=1e-4, atol=1e-4)  # mean 0, variance 1, as they were at the start


class Applied(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


RELUS = {
    "relu_normalised": torchbackend.layers.relu_normalised,
    "relu_sum": lambda x: torchbackend.layers.relu_sum(x, torch.zeros_like(x)),
}


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)
def test_a_relu_with_a_gradient_of_its_own_is_torch_s(relu: Callable[[torch.Tensor], torch.Tensor]):
    x = torch.tensor([-1.0, -0.0, 0.0, 1e-9, 2.0, torch.nan, -torch.inf, torch.inf], dtype=torch.float64)
    (own, own_gradient, _), (ours, our_gradient, _) = both(Applied(relu), x.reshape(1, 2, 2, 2))
    torch.testing.assert_close(ours, own, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(our_gradient, own_gradient, rtol=0, atol=0)


def backward_program(function: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Return TorchInductor's code for the gradient of a function of images."""
    torch.compiler.reset()
    x = torch.randn(IMAGES, requires_grad=True)
    _, (_, backward) = run_fw_bw_and_get_code(lambda: torch.compile(function, dynamic=False)(x))
    return str(backward)


def stored_images(program: str) -> int:
    return len(re.findall(rf"empty_strided_cpu\({re.escape(str(IMAGES)[:-1])}\)", program))


def parts() -> tuple[torchbackend.layers.BatchNorm, torchbackend.layers.Conv]:
    policy = torchbackend.precision.policy("float32", "cpu")
    return torchbackend.layers.BatchNorm(4, policy=policy), torchbackend.layers.Conv(4, 4, 3, policy=policy, padding=1)


@pytest.mark.usefixtures("without_kernels")
def test_what_is_stored_is_computed_once():
    def twice_read(x: torch.Tensor, hold: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        y = hold(x.erf())
        return y.sum(0)[0] + y.sum(1)[0]

    def computed(hold: Callable[[torch.Tensor], torch.Tensor]) -> int:
        _, (forward, _) = run_fw_bw_and_get_code(
            lambda: torch.compile(twice_read, dynamic=False)(torch.randn(64, 64, requires_grad=True), hold)
        )
        return str(forward).count("erf(")

    assert (computed(torchbackend.gradients.stored), computed(torch.abs)) == (1, 2)


@pytest.mark.usefixtures("without_kernels")
def test_the_gradient_of_batch_norm_stores_no_masked_gradient(monkeypatch: pytest.MonkeyPatch):
    (norm, conv), scale = parts(), nn.Parameter(torch.ones(4, 1, 1))

    def activated(x: torch.Tensor) -> torch.Tensor:
        return conv(torchbackend.layers.relu6(norm(x * scale)))

    assert stored_images(backward_program(activated)) == 1  # what it returns
    monkeypatch.setattr(torchbackend.layers, "_stored", lambda x: x)
    assert stored_images(backward_program(activated)) == 2


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norms, convs = zip(*(parts() for _ in range(2)), strict=True)
        self.norms, self.convs = nn.ModuleList(norms), nn.ModuleList(convs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torchbackend.layers.relu_sum(norm(conv(x)), x)
        return self.convs[0](x)


@pytest.mark.usefixtures("without_kernels")
def test_the_gradient_of_a_pooled_relu_is_stored_in_its_own_dtype(monkeypatch: pytest.MonkeyPatch):
    (norm, conv), pool = parts(), torchbackend.layers.MaxPool(2)

    def wide() -> int:
        torch.compiler.reset()
        x = torch.randn(IMAGES, dtype=torch.bfloat16, requires_grad=True)

        def pooled(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return conv(pool(torchbackend.layers.relu_normalised(norm(conv(x)))))

        _, (_, backward) = run_fw_bw_and_get_code(lambda: torch.compile(pooled, dynamic=False)(x))
        return len(re.findall(rf"empty_strided_cpu\({re.escape(str(IMAGES))}, .*?torch.float32\)", str(backward)))

    assert wide() == 0
    monkeypatch.setattr(torchbackend.gradients, "_with_stored_gradient", lambda x: x)
    assert wide() > 0


@pytest.mark.usefixtures("without_kernels")
def test_the_gradient_of_a_residual_sum_is_masked_once_at_most(monkeypatch: pytest.MonkeyPatch):
    def masks() -> int:
        return backward_program(Residual()).count("<=")

    assert masks() <= 2
    monkeypatch.setattr(torchbackend.gradients, "relu", functional.relu)
    assert masks() > 2


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_what_is_stored_is_right_in_every_memory_order(order: torch.memory_format):
    """TorchInductor keeps convolutions in a memory order of its own, for images of any order."""
    torch.manual_seed(0)
    model = Residual().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(4, 4, 8, 8, dtype=torch.float64).to(memory_format=order)
    (own, own_gradient, _), (ours, our_gradient, _) = both(model, x, backend="inductor")
    torch.testing.assert_close(ours, own, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(our_gradient, own_gradient, rtol=1e-9, atol=1e-9)


def test_relus_keep_an_activation_that_is_there_already():
    x = torch.randn(7, requires_grad=True)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda kept: kept):
        results = [relu(x) for relu in (torchbackend.gradients.relu, torchbackend.gradients.relu_normalised)]
    assert [each.data_ptr() for each in kept] == [results[0].data_ptr(), x.data_ptr()]
