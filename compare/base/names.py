"""What a matched model calls its variables and layers when they cross: the table that each side of a pair gets.

Neutral names are those of the torch model: a layer's dotted path, a variable's path followed by its role. The table
travels as JSON inside `ModelSpec.arguments`.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compare.base.trace import Layout, read_layout

_SEPARATORS = re.compile(r"[/()]+")  # of scopes in the name of an operation


@dataclass(frozen=True)
class Crossing:
    """How one variable crosses.

    Attributes:
        own: its name in the user's model, as in `compare.base.trace.Variable`. Rows of it are `NAME[FIRST:END]`.
        name: the neutral name.
        shape: the neutral shape, to which the side reshapes what it has brought into neutral order.
        is_parameter: whether it is trained.
        orders, axes: as in `compare.base.trace.Variable`.
    """

    own: str
    name: str
    shape: tuple[int, ...]
    is_parameter: bool
    orders: tuple[tuple[int, ...], ...] = ()
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Names:
    """One side's table.

    Attributes:
        variables: in neutral order.
        layers: own path to neutral name of the layers whose activations are compared.
        layouts: by own path, how a layer's input and output come into the neutral order, where its kind does not tell.
    """

    variables: tuple[Crossing, ...]
    layers: Mapping[str, str]
    layouts: Mapping[str, tuple[Layout, Layout]] = field(default_factory=dict[str, tuple[Layout, Layout]])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types. `from_json` is the inverse."""
        return asdict(self)


def split_part(own: str) -> tuple[str, slice | None]:
    """Return the name of a variable and the rows that are meant: `attention.in_proj_weight[0:8]`."""
    name, _, rows = own.partition("[")
    if not rows:
        return own, None
    first, _, end = rows.removesuffix("]").partition(":")
    return name, slice(int(first), int(end))


def join_path(parts: Iterable[Any]) -> str:
    """Return the parts of a path joined by dots, without empty parts."""
    return ".".join(str(part) for part in parts if part != "")


def from_json(values: Mapping[str, Any]) -> Names:
    """Return the table of what `Names.to_json` gave, by way of JSON or not."""
    variables = tuple(_crossing(each) for each in values["variables"])
    layouts = {
        path: (read_layout(first), read_layout(last)) for path, (first, last) in values.get("layouts", {}).items()
    }
    return Names(variables, dict(values["layers"]), layouts)


def _crossing(values: Mapping[str, Any]) -> Crossing:
    made = dict(values)
    made["shape"] = tuple(values["shape"])
    made["orders"] = tuple(tuple(order) for order in values.get("orders", ()))
    made["axes"] = tuple(values.get("axes", ()))
    return Crossing(**made)


def find_layer(name: str, layers: Collection[str]) -> str:
    """Return the innermost layer among the scopes of a name such as `jit(f)/transpose(jvp(stem.conv))/add`, or ""."""
    return next((scope for scope in reversed(_SEPARATORS.split(name)) if scope in layers), "")


def is_backward(name: str, layer: str) -> bool:
    """Tell whether an operation of that name belongs to the backward pass of its layer.

    A transposed convolution is itself the transpose of another one. So only scopes down to the layer's own count.
    """
    parts = name.split("/")
    own = next((index for index, part in enumerate(parts) if layer and layer in _SEPARATORS.split(part)), len(parts))
    return any("transpose(" in part for part in parts[: own + 1])
