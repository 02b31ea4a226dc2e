"""Names and memory order: between flax's variables and the neutral arrays of the shared interface.

A model's variables are arrays in nested dicts. Flax's own names and order (HWIO, [inputs, outputs]) are the neutral
ones, so a twin's paths are only joined; the variables of a user's own model are called and turned as their leaves say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx, traverse_util

from compare.base.interface import Arrays

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Leaf:
    """How one variable of a user's own model crosses.

    Attributes:
        name: the neutral name.
        shape: the neutral shape.
        turned: a transposed convolution's kernel [H, W, inputs, outputs], turned round in its plane.
    """

    name: str
    shape: tuple[int, ...]
    turned: bool = False

    def neutral(self, array: Any) -> Any:
        """Return the variable's array, NumPy's or JAX's, in neutral layout."""
        if self.turned:
            array = array[::-1, ::-1].swapaxes(2, 3)
        return array.reshape(self.shape)

    def own(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a neutral array in the variable's own layout and shape: the inverse of `neutral`."""
        if self.turned:
            array = array[::-1, ::-1].swapaxes(2, 3)
        return array.reshape(shape)


Leaves = Mapping[Path, Leaf]


def signature(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    """Return name to shape of every parameter and buffer, in the order in which the model declares them."""
    return {name: variable.get_value().shape for name, variable in _variables(model)}


def name(path: Path, leaves: Leaves | None = None) -> str:
    """Return the neutral name of a variable, "" where no leaf stands for it; without `leaves` it is a twin's."""
    if leaves is None:
        return ".".join(map(str, path))
    return leaves[path].name if path in leaves else ""


def export(state: Any, leaves: Leaves | None = None) -> dict[str, jax.Array]:
    """Return a model's variables by neutral name, in neutral layout; those that no leaf stands for are left out.

    Without `leaves` they are a twin's.
    """
    flat: dict[Any, Any] = traverse_util.flatten_dict(state)
    if leaves is None:
        return {name(path): array for path, array in flat.items()}
    return {leaves[path].name: leaves[path].neutral(array) for path, array in flat.items() if path in leaves}


def fetched(arrays: Mapping[str, jax.Array]) -> Arrays:
    """Return arrays copied to the host, all copies under way at once."""
    copies = jax.device_get(list(arrays.values()))  # a dict would come back sorted
    return {name: np.array(copy) for name, copy in zip(arrays, copies, strict=True)}


def assign(state: Any, arrays: Mapping[str, Any], dtype: Any, device: Any, leaves: Leaves | None = None) -> Any:
    """Return the same variables with the values of neutral arrays, cast to `dtype`, on `device`.

    Where no leaf stands for a variable of a user's own model, it keeps its value. Without `leaves` they are a twin's.
    """

    def value(path: Path, old: Any) -> Any:
        if leaves is None:
            return arrays[name(path)]
        return leaves[path].own(arrays[leaves[path].name], old.shape) if path in leaves else old

    flat: dict[Any, Any] = traverse_util.flatten_dict(state)
    placed = {path: jax.device_put(np.asarray(value(path, old), dtype), device) for path, old in flat.items()}
    return traverse_util.unflatten_dict(placed)


def _variables(module: Any, prefix: str = "") -> list[tuple[str, nnx.Variable[Any]]]:
    found: list[tuple[str, nnx.Variable[Any]]] = []
    for attribute, value in vars(module).items():
        if isinstance(value, (nnx.Param, nnx.BatchStat)):
            found.append((f"{prefix}{attribute}", value))
        elif isinstance(value, nnx.List):
            for index, item in enumerate(value):
                found += _variables(item, f"{prefix}{attribute}.{index}.")
        elif isinstance(value, nnx.Module):
            found += _variables(value, f"{prefix}{attribute}.")
    return found
