"""Carry the order of elements (`compare.base.element_order`) along with the tensors of a traced torch model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from compare.base import element_order
from compare.base.element_order import Bindings, ElementOrder
from torchbackend.only.function_names import REDUCTIONS, argument, reduced_axes

_MOVES = ("flatten", "view", "reshape", "unflatten", "squeeze", "unsqueeze", "ravel", "permute", "movedim", "moveaxis")
_MOVES += ("transpose", "swapaxes", "swapdims", "t", "getitem", "chunk", "split", "narrow", "select", "unbind")
_MOVES += ("tensor_split", "index_select", "flip", "roll", "rot90", "adjoint", "T", "mT", "reshape_as", "view_as")
_MOVES += ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "fliplr", "flipud")
_OF_IMAGES = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "interpolate")
_NORMS = ("batch_norm", "instance_norm", "group_norm")
_JOINS = ("cat", "concat", "concatenate")
_PRODUCTS = ("matmul", "bmm", "mm", "baddbmm", "addmm", "einsum", "tensordot", "outer", "multi_head_attention_forward")
_PRODUCTS += ("scaled_dot_product_attention", "embedding", "cdist")

Own = Callable[[torch.Tensor], str]
"""Returns the name of a variable, or an empty text for another tensor."""


class OrderTracker:
    """The orders of tensors, and of the variables that are used with them.

    Attributes:
        bindings: of the dense layers' outputs, in the order of their calls.
        variables: neutral orders by variable and neutral axis.
        axes: the axes in neutral order of variables that are added to images or multiply them.
    """

    def __init__(self, name_of: Own, bindings: Bindings) -> None:
        self.bindings = bindings
        self.variables: dict[str, dict[int, tuple[int, ...]]] = {}
        self.axes: dict[str, tuple[int, ...]] = {}
        self._name_of = name_of
        self._orders: dict[int, ElementOrder] = {}
        self._makers = 0

    def set(self, tensor: torch.Tensor, order: ElementOrder | None) -> None:
        """Remember the order of a tensor that lives as long as the trace."""
        if order is None or order.shape != tuple(tensor.shape):
            self._orders.pop(id(tensor), None)
        else:
            self._orders[id(tensor)] = order

    def get(self, tensor: torch.Tensor) -> ElementOrder | None:
        """Return the order of a tensor, or None if it is unknown."""
        return self._orders.get(id(tensor))

    def note(
        self, name: str, func: Any, args: Sequence[Any], keywords: Mapping[str, Any], results: Sequence[torch.Tensor]
    ) -> None:
        """Remember the orders of a function's results. `name` is its plain name."""
        try:
            orders = self._orders_of(name, func, args, keywords, results)
        except (RuntimeError, TypeError, ValueError, IndexError):  # an unusual form of a function
            orders = [None] * len(results)
        for tensor, order in zip(results, orders, strict=True):
            self.set(tensor, order)

    def _orders_of(
        self, name: str, func: Any, args: Sequence[Any], keywords: Mapping[str, Any], results: Sequence[torch.Tensor]
    ) -> list[ElementOrder | None]:
        tensors = [value for value in (*args, *keywords.values()) if isinstance(value, torch.Tensor)]
        x = tensors[0] if tensors else None
        order = None if x is None else self.get(x)
        first = results[0]
        if name in _JOINS:
            parts, axis = args[0], argument(args, keywords, 1, "dim", 0)
            joined = element_order.join([(self.get(part), tuple(part.shape)) for part in parts], axis)
            return [joined]
        if name == "linear" or (name in ("matmul", "mm") and len(tensors) == 2 and self._is_kernel(tensors[1])):
            return [self._of_dense(order, tensors[1:], first, is_linear=name == "linear")]
        if name in _OF_IMAGES or "pool" in name or name == "pixel_shuffle":
            if x is not None and x.ndim == first.ndim >= 3:
                self.bindings.bind_image(order, 1)
                return [element_order.image_order(tuple(result.shape), 1) for result in results]
            return [None] * len(results)
        if name in _PRODUCTS:
            return [None] * len(results)
        if order is None:
            return [self._of_pointwise(tensors, result) for result in results]
        if name in _MOVES:
            moved = func(*(self._places(value) for value in args), **{k: self._places(v) for k, v in keywords.items()})
            moved = [moved] if isinstance(moved, torch.Tensor) else list(moved)
            return [order.moved(each.numpy()) for each in moved]
        if name in REDUCTIONS and len(results) == 1 and x is not None and first.shape != x.shape:
            return [self._of_reduction(x, order, reduced_axes(name, args, keywords), first)]
        if name in _NORMS and x is not None:
            if x.ndim > 2:
                self.bindings.bind_image(order, 1)
                return [element_order.image_order(tuple(first.shape), 1)]
            self._note_vectors(order, tensors[1:])
            return [order]
        if name == "layer_norm":
            self._note_vectors(order, tensors[1:])
            return [order]
        return [self._of_pointwise(tensors, result) for result in results]

    def _places(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        order = self.get(value)
        return value if order is None else torch.from_numpy(np.ascontiguousarray(order.places))  # `view` needs it

    def _is_kernel(self, tensor: torch.Tensor) -> bool:
        base = tensor if tensor._base is None else tensor._base
        return tensor.ndim == 2 and bool(self._name_of(tensor) or self._name_of(base))

    def _of_dense(
        self,
        order: ElementOrder | None,
        variables: Sequence[torch.Tensor],
        result: torch.Tensor,
        *,
        is_linear: bool,
    ) -> ElementOrder | None:
        maker, self._makers = self._makers, self._makers + 1
        made = self.bindings.make(maker, tuple(result.shape), order)
        rows, columns = () if order is None else order.features(), self.bindings.outputs(maker)
        kernel, *bias = variables
        name = self._name_of(kernel)
        if name and is_linear:
            self._note_variable(name, 0, rows)
            self._note_variable(name, 1, columns)
        for vector in bias:
            self._note_variable(self._name_of(vector), 0, columns)
        return made

    def _of_reduction(
        self,
        x: torch.Tensor,
        order: ElementOrder,
        axes: tuple[int, ...] | None,
        result: torch.Tensor,
    ) -> ElementOrder | None:
        if axes is None:
            return None
        keeps, chosen = result.ndim == x.ndim, tuple(axis % x.ndim for axis in axes)
        if x.ndim == 4 and chosen == (2, 3):
            self.bindings.bind_image(order, 1)
        reduced = order.reduced(order.places.min(axis=chosen, keepdims=keeps))
        return reduced if reduced.shape == tuple(result.shape) else None

    def _of_pointwise(self, tensors: Sequence[torch.Tensor], result: torch.Tensor) -> ElementOrder | None:
        shape = tuple(result.shape)
        known = [(tensor, order) for tensor in tensors if (order := self.get(tensor)) is not None]
        alike = [order for _, order in known if order.shape == shape]
        if not alike:
            same_axes = [order for _, order in known if len(order.shape) == len(shape)]
            return element_order.resized_order(same_axes[0], shape) if same_axes else None
        chosen = self.bindings.choose(alike)
        for tensor in tensors:
            if tensor.ndim == len(shape) > 2 and (name := self._name_of(tensor)):
                self.axes.setdefault(name, chosen.axes())
        self._note_vectors(chosen, [tensor for tensor in tensors if self.get(tensor) is None])
        return chosen

    def _note_vectors(self, order: ElementOrder, tensors: Sequence[torch.Tensor]) -> None:
        """Note the order of variables with a value for each feature of the last axis."""
        if len(order.shape) != 2:
            return
        for tensor in tensors:
            if tensor.ndim and tensor.shape[-1] == order.shape[-1] == tensor.numel() > 1:
                self._note_variable(self._name_of(tensor), 0, order.features())

    def _note_variable(self, name: str, axis: int, order: tuple[int, ...]) -> None:
        if name and order:
            self.variables.setdefault(name, {})[axis] = order
