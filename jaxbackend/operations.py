"""The convolutions and products of a training step, from JAX's trace of it."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from unittest import mock

import jax
from jax.extend.core import ClosedJaxpr

from compare.base import names
from compare.base.operation_counts import (
    CONVOLUTION,
    DATA_GRADIENT,
    FORWARD,
    PRODUCT,
    WEIGHT_GRADIENT,
    Axis,
    Operation,
    count_convolution,
    count_product,
)
from jaxbackend import stems


def count(
    step: Callable[..., Any], arguments: tuple[Any, ...], layers: Collection[str], parameters: Mapping[str, int]
) -> list[Operation]:
    """Return the convolutions and products of `step(*arguments)`, each with its layer.

    `layers` are the names of all layers, and `parameters` the size of each parameter by name. Images of few channels
    are counted as they are, not as the step rewrites them.
    """
    with mock.patch.object(stems, "rewrite", return_value=None):
        jaxpr = jax.make_jaxpr(step)(*arguments)
    sizes = {(name.rpartition(".")[0], size) for name, size in parameters.items()}
    return list(_walk(jaxpr.jaxpr, layers, sizes, "", 1))


def _walk(
    jaxpr: Any, layers: Collection[str], sizes: set[tuple[str, int]], outside: str, times: int
) -> Iterator[Operation]:
    for equation in jaxpr.eqns:
        stack = f"{outside}/{equation.source_info.name_stack}"
        name = equation.primitive.name
        if name in ("conv_general_dilated", "dot_general"):
            yield _operation(equation, stack, layers, sizes, times)
            continue
        turns = equation.params["length"] if name == "scan" else 1
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(inner, ClosedJaxpr):
                    yield from _walk(inner.jaxpr, layers, sizes, stack, times * turns)
                elif hasattr(inner, "eqns"):
                    yield from _walk(inner, layers, sizes, stack, times * turns)


def _operation(
    equation: Any, stack: str, layers: Collection[str], sizes: set[tuple[str, int]], times: int
) -> Operation:
    layer = names.find_layer(stack, layers)
    output = equation.outvars[0].aval.shape
    direction = FORWARD
    if names.is_backward(stack, layer):
        direction = WEIGHT_GRADIENT if _is_of_weights(equation, layer, output, sizes) else DATA_GRADIENT
    if equation.primitive.name == "conv_general_dilated":
        return Operation(layer, CONVOLUTION, direction, times * _convolution(equation, output))
    return Operation(layer, PRODUCT, direction, times * _product(equation, output))


def _is_of_weights(equation: Any, layer: str, output: tuple[int, ...], sizes: set[tuple[str, int]]) -> bool:
    """Tell whether a gradient is that of a kernel. Such a convolution sums over images as if they were channels."""
    if equation.primitive.name == "conv_general_dilated":
        return equation.params["dimension_numbers"].lhs_spec[0] != 0
    return (layer, math.prod(output)) in sizes


def _convolution(equation: Any, output: tuple[int, ...]) -> int:
    left, right = (variable.aval.shape for variable in equation.invars)
    params, numbers = equation.params, equation.params["dimension_numbers"]
    axes = [
        Axis(
            size=left[numbers.lhs_spec[2 + axis]],
            output=output[numbers.out_spec[2 + axis]],
            kernel=right[numbers.rhs_spec[2 + axis]],
            stride=params["window_strides"][axis],
            before=params["padding"][axis][0],
            input_dilation=params["lhs_dilation"][axis],
            kernel_dilation=params["rhs_dilation"][axis],
        )
        for axis in range(len(numbers.lhs_spec) - 2)
    ]
    images, outputs = output[numbers.out_spec[0]], output[numbers.out_spec[1]]
    return count_convolution(images, right[numbers.rhs_spec[1]], outputs, axes)


def _product(equation: Any, output: tuple[int, ...]) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return count_product(1, inner, math.prod(output))
