"""Carry the order of elements (`compare.base.element_order`) along with the values of a traced program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.base import element_order
from compare.base.element_order import Bindings, ElementOrder, Numbers

_PASSED = (
    "convert_element_type",
    "copy",
    "copy_p",
    "name",
    "stop_gradient",
    "reduce_precision",
    "optimization_barrier",
)
_RESIZED = ("pad", "reduce_window_max", "reduce_window_sum", "reduce_window_min", "reduce_window", "dynamic_slice")
_RESIZED += ("gather", "cumsum", "sort")
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")


@dataclass(frozen=True)
class Elements:
    """The elements of a value in a program.

    Attributes:
        order: the order of data; None for constants and parameters, and where it is unknown.
        parameter: the number of the parameter that the value is, unless it is computed.
        indices: for each element of the value its index in that parameter.
    """

    order: ElementOrder | None = None
    parameter: int | None = None
    indices: Numbers | None = None


NOTHING = Elements()


class OrderRules:
    """The rules for each primitive.

    Attributes:
        bindings: of the dense layers' outputs, in the order of their equations.
        variables: neutral orders by the parameter's number and its axis.
    """

    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings
        self.variables: dict[int, dict[int, tuple[int, ...]]] = {}
        self._makers = 0

    def results(self, equation: Any, inputs: Sequence[Elements]) -> list[Elements]:
        """Return the elements of an equation's results, which have nothing in common with data if they are unknown."""
        shapes = [tuple(getattr(variable.aval, "shape", ())) for variable in equation.outvars]
        try:
            results = self._results(equation, inputs, shapes)
        except (TypeError, ValueError, IndexError, KeyError):  # an unusual form of a primitive
            results = []
        results = [*results, *[NOTHING] * (len(shapes) - len(results))]
        return [
            NOTHING if each.order is not None and each.order.shape != shape else each
            for each, shape in zip(results, shapes, strict=True)
        ]

    def _results(self, equation: Any, inputs: Sequence[Elements], shapes: Sequence[tuple[int, ...]]) -> list[Elements]:
        name, parameters = equation.primitive.name, equation.params
        if name in _PASSED:
            return list(inputs)
        if name == "conv_general_dilated":
            dimensions = parameters["dimension_numbers"]
            self.bindings.bind_image(inputs[0].order, dimensions.lhs_spec[1])
            return [Elements(element_order.image_order(shapes[0], dimensions.out_spec[1]))]
        if name == "dot_general":
            return [self._of_product(parameters["dimension_numbers"], inputs, shapes[0])]
        if name == "concatenate":
            parts = zip(inputs, equation.invars, strict=True)
            orders = [(each.order, tuple(variable.aval.shape)) for each, variable in parts]
            return [Elements(element_order.join(orders, parameters["dimension"]))]
        if name == "split":
            cuts = np.cumsum(parameters["sizes"])[:-1]
            return [_move(inputs[0], each) for each in _split(inputs[0], cuts, parameters["axis"])]
        if name == "broadcast_in_dim":
            return [_broadcast(inputs[0], shapes[0], parameters["broadcast_dimensions"])]
        if name in ("reshape", "squeeze", "transpose", "slice", "rev"):
            return [_move(inputs[0], _moved(name, parameters, _places(inputs[0]), shapes[0]))]
        if name in REDUCTIONS and inputs[0].order is not None:
            return [Elements(inputs[0].order.reduced(inputs[0].order.places.min(axis=tuple(parameters["axes"]))))]
        if name in _RESIZED and inputs[0].order is not None:
            same_axes = len(inputs[0].order.shape) == len(shapes[0])
            return [Elements(element_order.resized_order(inputs[0].order, shapes[0]))] if same_axes else []
        return [self._of_pointwise(inputs, shape) for shape in shapes]

    def _of_product(self, dimensions: Any, inputs: Sequence[Elements], shape: tuple[int, ...]) -> Elements:
        (data_axes, kernel_axes), batch = dimensions
        data, kernel = inputs
        if any(batch) or len(data_axes) != 1 or kernel.order is not None or data.order is None:
            return NOTHING
        maker, self._makers = self._makers, self._makers + 1
        before = data.order.moved(np.moveaxis(data.order.places, data_axes[0], -1))
        made = self.bindings.make(maker, shape, before)
        if kernel.parameter is not None and kernel.indices is not None and kernel.indices.ndim == 2:
            rows = kernel.indices if kernel_axes[0] == 0 else kernel.indices.T
            is_turned = bool(rows.shape[1] > 1 and rows[0, 1] - rows[0, 0] != 1)
            self._note(kernel.parameter, int(is_turned), before.features())
            self._note(kernel.parameter, 1 - int(is_turned), self.bindings.outputs(maker))
        return Elements(made)

    def _of_pointwise(self, inputs: Sequence[Elements], shape: tuple[int, ...]) -> Elements:
        alike = [each.order for each in inputs if each.order is not None and each.order.shape == shape]
        if not alike:
            return NOTHING
        chosen = self.bindings.choose(alike)
        for each in inputs:
            if each.parameter is not None and each.indices is not None and len(shape) == 2:
                row = each.indices.reshape(-1, each.indices.shape[-1])[0] if each.indices.ndim else each.indices
                if np.array_equal(row, np.arange(shape[-1])) and shape[-1] > 1:
                    self._note(each.parameter, 0, chosen.features())
        return Elements(chosen)

    def _note(self, parameter: int, axis: int, order: tuple[int, ...]) -> None:
        if order:
            self.variables.setdefault(parameter, {})[axis] = order


def _places(value: Elements) -> Any:
    if value.order is not None:
        return value.order.places
    if value.indices is None:
        raise ValueError("nothing is known of this value")
    return value.indices


def _move(value: Elements, places: Any) -> Elements:
    if value.order is not None:
        return Elements(value.order.moved(places))
    return Elements(None, value.parameter, places)


def _moved(name: str, parameters: Any, places: Any, shape: tuple[int, ...]) -> Any:
    if name == "transpose":
        return places.transpose(parameters["permutation"])
    if name == "slice":
        steps = parameters["strides"] or (1,) * places.ndim
        starts, ends = parameters["start_indices"], parameters["limit_indices"]
        return places[tuple(slice(*part) for part in zip(starts, ends, steps, strict=True))]
    if name == "rev":
        return np.flip(places, parameters["dimensions"])
    return places.reshape(shape)


def _split(value: Elements, cuts: Any, axis: int) -> list[Any]:
    return np.split(_places(value), cuts, axis)


def _broadcast(value: Elements, shape: tuple[int, ...], axes: Sequence[int]) -> Elements:
    places = _places(value)
    expanded = [1] * len(shape)
    for axis, length in zip(axes, places.shape, strict=True):
        expanded[axis] = length
    places = places.reshape(expanded)
    if value.order is None:
        return Elements(None, value.parameter, np.broadcast_to(places, shape))
    order = value.order.moved(places)
    return Elements(order if tuple(expanded) == shape else element_order.resized_order(order, shape))
