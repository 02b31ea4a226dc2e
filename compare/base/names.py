"""What a matched model calls its variables and layers when they cross: the table that each side of a pair gets.

Neutral names are those of the torch model: a layer's dotted path, a variable's path followed by its role. The table
travels as JSON inside `ModelSpec.arguments`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Crossing:
    """How one variable crosses.

    Attributes:
        own: its name in the user's model, as in `compare.base.trace.Variable`.
        name: the neutral name.
        shape: the neutral shape, to which the side reshapes what it has brought into neutral order.
        flattened: of a dense kernel whose inputs this side flattens channels first (CHW) where neutral is HWC: the
            number of channels; else None. Rows are brought from [C, HW] to [HW, C], and so is the layer's recorded
            input.
        is_parameter: whether it is trained.
    """

    own: str
    name: str
    shape: tuple[int, ...]
    flattened: int | None
    is_parameter: bool


@dataclass(frozen=True)
class Names:
    """One side's table: `variables` in neutral order, and `layers`, own path to neutral name, of matched layers."""

    variables: tuple[Crossing, ...]
    layers: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types. `from_json` is the inverse."""
        return asdict(self)


def join_path(parts: Iterable[Any]) -> str:
    """Return the parts of a path joined by dots, without empty parts."""
    return ".".join(str(part) for part in parts if part != "")


def from_json(values: Mapping[str, Any]) -> Names:
    """Return the table of what `Names.to_json` gave, by way of JSON or not."""
    return Names(tuple(_crossing(each) for each in values["variables"]), dict(values["layers"]))


def _crossing(values: Mapping[str, Any]) -> Crossing:
    made = dict(values)
    made["shape"] = tuple(values["shape"])
    return Crossing(**made)
