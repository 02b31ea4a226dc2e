"""The kernels of `compare.kernels` as operators of PyTorch, which TorchInductor calls as they are.

Matrices are contiguous [rows, channels]. `blocks` are the fields of `launches.Blocks`. The shapes of the results follow
from them, so a program can be compiled before a kernel exists.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compare.kernels import launches
from compare.kernels.launches import Blocks, Launch, Product


@torch.library.custom_op("samestep::multiply", mutates_args=())
def multiply(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, shift: Tensor, kind: str, tf32: bool, blocks: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y = f(x) w^T, and each program's means and sums of squared deviations."""
    launch = _multiply(x, weight, kind, tf32, blocks)
    y, means, squares = _run(launch, (x, weight, scale, bias, shift))
    return y, means, squares


@multiply.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = inputs[:2]
    y, means, squares = _outputs(_multiply(x, weight, *inputs[-3:]), x)
    return y, means, squares


@torch.library.custom_op("samestep::data_gradient", mutates_args=())
def data_gradient(
    gradient: Tensor,
    y: Tensor,
    factors: Tensor,
    weight: Tensor,
    x: Tensor,
    center: Tensor,
    skip: Tensor,
    source: Tensor,
    tf32: bool,
    blocks: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the masked gradient of the input, and each program's sums of it and of its products with the source."""
    inputs = (gradient, y, factors, weight, x, center, skip, source)
    result, sums, products = _run(_data_gradient(x, weight, tf32, blocks), inputs)
    return result, sums, products


@data_gradient.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    weight, x = inputs[3:5]
    result, sums, products = _outputs(_data_gradient(x, weight, *inputs[-2:]), x)
    return result, sums, products


@torch.library.custom_op("samestep::weight_gradient", mutates_args=())
def weight_gradient(gradient: Tensor, y: Tensor, factors: Tensor, x: Tensor, tf32: bool, blocks: list[int]) -> Tensor:
    """Return parts [splits, inputs, outputs] of the weight's gradient."""
    return _run(_weight_gradient(x, y, tf32, blocks), (gradient, y, factors, x))[0]


@weight_gradient.register_fake
def _(*inputs: Any) -> Tensor:
    _, y, _, x, *_ = inputs
    return _outputs(_weight_gradient(x, y, *inputs[-2:]), x)[0]


def _multiply(x: Tensor, weight: Tensor, kind: str, tf32: bool, blocks: list[int]) -> Launch:
    return launches.multiply(
        Product(x.shape[0], x.shape[1], weight.shape[0]),
        Blocks(*blocks),
        processors=_processors(x),
        apply=kind == "affine",
        weight_strides=(weight.stride(1), weight.stride(0)),
        precision=_precision(tf32),
    )


def _data_gradient(x: Tensor, weight: Tensor, tf32: bool, blocks: list[int]) -> Launch:
    return launches.data_gradient(
        Product(x.shape[0], x.shape[1], weight.shape[0]),
        Blocks(*blocks),
        processors=_processors(x),
        weight_strides=(weight.stride(1), weight.stride(0)),
        precision=_precision(tf32),
    )


def _weight_gradient(x: Tensor, y: Tensor, tf32: bool, blocks: list[int]) -> Launch:
    product = Product(x.shape[0], x.shape[1], y.shape[1])
    return launches.weight_gradient(product, Blocks(*blocks), processors=_processors(x), precision=_precision(tf32))


def _precision(tf32: bool) -> str:
    return "tf32" if tf32 else "ieee"


def _processors(x: Tensor) -> int:
    """Return the device's number of multiprocessors. Triton's interpreter, on a CPU, has as many as it likes."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4


def _outputs(launch: Launch, like: Tensor) -> list[Tensor]:
    return [
        like.new_empty(shape, dtype=like.dtype if name in launch.narrow else torch.float32)
        for name, shape in launch.outputs.items()
    ]


def _run(launch: Launch, inputs: Sequence[Tensor]) -> list[Tensor]:
    outputs = _outputs(launch, inputs[0])
    launch.function()[(launch.programs,)](*inputs, *outputs, **launch.constants, num_warps=launch.warps)
    return outputs
