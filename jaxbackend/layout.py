"""Names and memory order: between flax's variables and the neutral arrays of the shared interface.

Flax's own names and order (HWIO, [inputs, outputs]) are the neutral ones, so only paths are joined.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from compare.interface import Arrays


def signature(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    """Return name to shape of every parameter and buffer, in the order in which the model declares them."""
    return {name: variable.get_value().shape for name, variable in _variables(model)}


def export(state: Any) -> dict[str, jax.Array]:
    """Return the arrays of a flax state by neutral name, in neutral layout."""
    return {_name(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}


def fetched(arrays: Mapping[str, jax.Array]) -> Arrays:
    """Return arrays copied to the host, all copies under way at once."""
    copies = jax.device_get(list(arrays.values()))  # a dict would come back sorted
    return {name: np.array(copy) for name, copy in zip(arrays, copies, strict=True)}


def assign(state: Any, arrays: Mapping[str, Any], dtype: Any, device: Any) -> Any:
    """Return a flax state of the same structure with the values of neutral arrays, cast to `dtype`, on `device`."""
    return nnx.from_flat_state(
        (path, variable.replace(jax.device_put(np.asarray(arrays[_name(path)], dtype), device)))
        for path, variable in nnx.to_flat_state(state)
    )


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


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)
