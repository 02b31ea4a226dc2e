"""Names and memory order: between torch's tensors and the neutral arrays of the shared interface.

A table (`compare.base.names`) names the variables. A twin's table is made here from its attributes, and a user's model
gets one. `torchbackend.roles` knows the order of axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from compare.base.interface import Arrays
from compare.base.names import Crossing, Names, join_path, split_part
from torchbackend import roles
from torchbackend.only.memory_order import invert, take
from torchbackend.only.modules import tensors


@dataclass(frozen=True)
class Leaf:
    """How one variable crosses.

    Attributes:
        name: the neutral name.
        tensor: torch's tensor.
        axes: the order of its axes when neutral.
        shape: the neutral shape.
        orders: the indices of each neutral axis in neutral order, empty where they are in it.
        is_parameter: whether it is trained.
        rows: the rows of the tensor that are meant, None for all.
    """

    name: str
    tensor: torch.Tensor
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    is_parameter: bool
    rows: slice | None = None

    def to_neutral(self, array: torch.Tensor) -> torch.Tensor:
        """Return an array in the variable's own layout in neutral layout."""
        ordered = self.take_rows(array).permute(self.axes).reshape(self.shape)
        for axis, order in enumerate(self.orders):
            if order:
                ordered = take(ordered, axis, order)
        return ordered

    def take_rows(self, array: torch.Tensor) -> torch.Tensor:
        """Return the variable's part of an array in the shape of its tensor."""
        return array if self.rows is None else array[self.rows]

    def from_neutral(self, array: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a neutral array in the variable's own layout and shape: the inverse of `to_neutral`."""
        for axis, order in enumerate(self.orders):
            if order:
                array = take(array, axis, invert(order))
        ordered = array.reshape([shape[axis] for axis in self.axes])
        return ordered.permute([self.axes.index(axis) for axis in range(len(shape))])


Leaves = Sequence[Leaf]


def names(model: nn.Module) -> Names:
    """Return a twin's table: every parameter and buffer in the order in which it declares them, and every layer."""
    variables: list[Crossing] = []
    for path, module in model.named_modules():
        for attribute, tensor, is_parameter in tensors(module):
            role, _, axes = roles.variable(module, roles.role(module), attribute, tensor.shape)
            name = join_path((path, attribute if role in ("gamma", "free") else role))
            shape = tuple(tensor.shape[axis] for axis in axes)
            variables.append(Crossing(join_path((path, attribute)), name, shape, is_parameter))
    return Names(tuple(variables), {path: path for path, module in model.named_modules() if not any(module.children())})


def signature(table: Names) -> dict[str, tuple[int, ...]]:
    """Return name to shape of every parameter and buffer, in the table's order."""
    return {variable.name: variable.shape for variable in table.variables}


def leaves(model: nn.Module, table: Names) -> Leaves:
    """Return every parameter and buffer of a model in its table's order."""
    found: list[Leaf] = []
    for variable in table.variables:
        own, rows = split_part(variable.own)
        path, _, attribute = own.rpartition(".")
        module = model.get_submodule(path)
        tensor: torch.Tensor = getattr(module, attribute)
        axes = variable.axes or roles.variable(module, roles.role(module), attribute, tensor.shape)[2]
        found.append(Leaf(variable.name, tensor, axes, variable.shape, variable.orders, variable.is_parameter, rows))
    return found


def export(variables: Mapping[str, torch.Tensor], leaves: Leaves) -> dict[str, torch.Tensor]:
    """Return a model's variables by neutral name, in neutral layout."""
    return {leaf.name: leaf.to_neutral(variables[leaf.name].detach()) for leaf in leaves if leaf.name in variables}


def fetch(arrays: Mapping[str, torch.Tensor], *, owned: bool = False) -> Arrays:
    """Return arrays copied to the host. All copies run at once, and the device brings their axes into order.

    Arrays that nothing will change are `owned`, and stay as they are if they are on the host.
    """
    if not any(array.is_cuda for array in arrays.values()):
        return {name: array.detach().numpy() if owned else _copy(array.detach()) for name, array in arrays.items()}
    copies = {
        name: torch.empty(array.shape, dtype=array.dtype).copy_(array.detach(), non_blocking=True)
        for name, array in arrays.items()
    }
    torch.cuda.synchronize()
    return {name: copy.numpy() for name, copy in copies.items()}


def assign(leaves: Leaves, arrays: Mapping[str, Any]) -> None:
    """Set the variables to the values of neutral arrays, cast to their own dtypes."""
    with torch.no_grad():
        for leaf in leaves:
            array = torch.from_numpy(np.asarray(arrays[leaf.name]))
            part = leaf.take_rows(leaf.tensor)
            part.copy_(leaf.from_neutral(array, part.shape))


def _copy(array: torch.Tensor) -> Any:
    # In the order of its memory: bringing a kernel's axes into order takes ten times as long, and only files need it.
    return np.array(array.numpy(), order="K")
