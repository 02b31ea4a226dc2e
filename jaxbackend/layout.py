"""Names and memory order: between flax's variables and the neutral arrays of the shared interface.

A model's variables are arrays in nested dicts. Flax's own names and order (HWIO, [inputs, outputs]) are the neutral
ones, so a twin's name is its path. The leaves of a user's model name its variables and turn them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx, traverse_util

from compare.base.interface import Arrays
from compare.base.names import Crossing, Names, join_path


@dataclass(frozen=True)
class Leaf:
    """How one variable of a user's own model crosses.

    Attributes:
        name: the neutral name.
        shape: the neutral shape.
        turned: whether it is a transposed convolution's kernel [..., inputs, outputs], turned round in its plane.
        orders: the indices of each axis in neutral order, empty where they are in it. They are for the last axes.
    """

    name: str
    shape: tuple[int, ...]
    turned: bool = False
    orders: tuple[tuple[int, ...], ...] = ()

    def to_neutral(self, array: Any) -> Any:
        """Return an array in the variable's own layout in neutral layout."""
        if self.turned:
            array = _turn(array)
        array = array.reshape(self.shape)
        for axis, order in enumerate(self.orders, -len(self.orders)):
            if order:
                array = array.take(np.asarray(order), axis=axis)
        return array

    def from_neutral(self, array: Any, shape: Sequence[int]) -> Any:
        """Return a neutral array in the variable's own layout and shape: the inverse of `to_neutral`."""
        for axis, order in enumerate(self.orders, -len(self.orders)):
            if order:
                array = array.take(np.argsort(order), axis=axis)
        if self.turned:
            array = _turn(array)
        return array.reshape(shape)


def _turn(kernel: Any) -> Any:
    """Return a transposed convolution's kernel turned round in its plane, with inputs and outputs swapped."""
    return kernel[(slice(None, None, -1),) * (kernel.ndim - 2)].swapaxes(-2, -1)


Leaves = Mapping[tuple[Any, ...], Leaf]
"""Leaves by the paths of their variables."""


def names(model: nnx.Module) -> Names:
    """Return a twin's table: every parameter and buffer in the order in which it declares them, and every layer."""
    variables = tuple(
        Crossing(name, name, variable.get_value().shape, isinstance(variable, nnx.Param))
        for name, variable in _variables(model)
    )
    paths = [join_path(path) for path, module in nnx.iter_modules(model) if not any(_children(module))]
    return Names(variables, {path: path for path in paths})


def signature(table: Names) -> dict[str, tuple[int, ...]]:
    """Return name to shape of every parameter and buffer, in the table's order."""
    return {variable.name: variable.shape for variable in table.variables}


def export(variables: Any, leaves: Leaves | None) -> dict[str, jax.Array]:
    """Return a model's variables by neutral name, in neutral layout.

    Without `leaves` they are a twin's. Variables without a leaf are left out.
    """
    flat: dict[Any, Any] = traverse_util.flatten_dict(variables)
    if leaves is None:
        return {join_path(path): array for path, array in flat.items()}
    return {leaves[path].name: leaves[path].to_neutral(array) for path, array in flat.items() if path in leaves}


def fetch(arrays: Mapping[str, jax.Array], *, owned: bool = False) -> Arrays:
    """Return arrays copied to the host. All copies run at once.

    Arrays that nothing will change are `owned`, and stay as they are if they are on the host.
    """
    copies = jax.device_get(list(arrays.values()))  # a dict would come back sorted
    return {name: copy if owned else np.array(copy) for name, copy in zip(arrays, copies, strict=True)}


def assign(state: Any, leaves: Leaves | None, arrays: Mapping[str, Any]) -> Any:
    """Return the same variables on the host with the values of neutral arrays, cast to their own dtypes.

    Without `leaves` they are a twin's. A variable without a leaf keeps its value.
    """

    def value(path: tuple[Any, ...], old: Any) -> Any:
        if leaves is None:
            return arrays[join_path(path)]
        return leaves[path].from_neutral(arrays[leaves[path].name], old.shape) if path in leaves else old

    flat: dict[Any, Any] = traverse_util.flatten_dict(state)
    return traverse_util.unflatten_dict({path: np.asarray(value(path, old), old.dtype) for path, old in flat.items()})


def _variables(module: Any, prefix: str = "") -> list[tuple[str, nnx.Variable[Any]]]:
    variables: list[tuple[str, nnx.Variable[Any]]] = []
    for attribute, value in vars(module).items():
        if isinstance(value, (nnx.Param, nnx.BatchStat)):
            variables.append((f"{prefix}{attribute}", value))
        elif isinstance(value, nnx.List):
            for index, item in enumerate(value):
                variables += _variables(item, f"{prefix}{attribute}.{index}.")
        elif isinstance(value, nnx.Module):
            variables += _variables(value, f"{prefix}{attribute}.")
    return variables


def _children(module: Any) -> list[nnx.Module]:
    return [value for value in vars(module).values() if isinstance(value, nnx.Module)]
