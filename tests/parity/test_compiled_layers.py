"""What torch's layers are written out as for TorchInductor computes what torch's own kernels do."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import torchbackend.layers
import torchbackend.precision

WINDOWS = {
    "2, 2": (2, 2, 0),
    "3, 2, padded": (3, 2, 1),
    "3, 1, padded": (3, 1, 1),
    "2, 3": (2, 3, 0),
    "3, 2": (3, 2, 0),
}
CASES = [((9, 8), torch.float64, 1e-13), ((5, 6), torch.float64, 1e-13), ((5, 6), torch.bfloat16, 2e-2)]


@pytest.fixture(autouse=True)
def programs_of_its_own() -> Iterator[None]:
    yield
    torch.compiler.reset()  # programs count against the limit of recompilations


def both(layer: nn.Module, x: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, nn.Module]]:
    """Return the output, the input's gradient and the layer of torch's own kernels and of the compiled program."""
    own = copy.deepcopy(layer)
    torch.manual_seed(1)
    weight = None
    for module, call in ((own, own), (layer, torch.compile(layer, backend="aot_eager", dynamic=False))):
        given = x.clone().requires_grad_()
        output = call(given)
        weight = torch.randn_like(output) if weight is None else weight
        output.backward(weight)
        assert given.grad is not None
        yield output.detach(), given.grad, module


@pytest.mark.parametrize(("size", "stride", "padding"), WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize(("sides", "dtype", "rounding"), CASES)
def test_a_written_out_max_pool_is_torch_s(
    size: int, stride: int, padding: int, sides: tuple[int, int], dtype: torch.dtype, rounding: float
):
    torch.manual_seed(0)
    anything, ties, broken = torch.randn(3, 2, 3, *sides, dtype=dtype) - 5
    broken[1, 2, 3, 4] = torch.nan
    (own, own_gradient, _), (ours, our_gradient, _) = both(
        torchbackend.layers.MaxPool(size, stride=stride, padding=padding), torch.cat([anything, ties.round(), broken])
    )
    torch.testing.assert_close(ours, own, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(our_gradient, own_gradient, rtol=rounding, atol=rounding)


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
