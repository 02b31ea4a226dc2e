"""Write typed objects as JSON, and read JSON from another process as typed objects, with a check of every type."""

import functools
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints


def encode(value: Any) -> Any:
    """Return a value of dataclasses, mappings and sequences as JSON types."""
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in cast("Sequence[Any]", value)]
    return value


def decode(kind: Any, value: Any) -> Any:
    """Return a JSON value as an object of the type `kind`.

    A type is a dataclass, a sequence, a mapping with strings as keys, a number, a text, None, or one of
    several of these.

    Raises:
        TypeError: the value does not have that type.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in inner:
            return None
        return _decode_one_of([each for each in inner if each is not types.NoneType], value)
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_dataclass(cast(Any, kind), value)
    if origin is tuple and inner[-1] is not Ellipsis:
        items = _check(kind, value, list, tuple)
        if len(items) != len(inner):
            raise TypeError(f"{len(items)} values, expected {len(inner)}")
        return tuple(decode(item_kind, item) for item_kind, item in zip(inner, items, strict=True))
    if origin in (list, tuple, Sequence):
        found = [decode(inner[0], item) for item in _check(kind, value, list, tuple)]
        return tuple(found) if origin is tuple else found
    if origin in (dict, Mapping):
        return {name: decode(inner[1], item) for name, item in _check(kind, value, dict).items()}
    if kind is float:
        return _check(kind, value, int, float)
    return _check(kind, value, types.NoneType if kind is None else kind)


def _decode_one_of(kinds: Sequence[Any], value: Any) -> Any:
    """Return a value as the first of several types that it has. The last one says what is wrong."""
    for kind in kinds[:-1]:
        with suppress(TypeError):
            return decode(kind, value)
    return decode(kinds[-1], value)


def _decode_dataclass(kind: Any, value: Any) -> Any:
    hints, values = _hints(kind), _check(kind, value, dict)
    if unlike := values.keys() ^ hints.keys():
        raise TypeError(f"{kind.__name__}: {', '.join(sorted(unlike))} is missing or unknown")
    return kind(**{name: decode(hints[name], item) for name, item in values.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _check(kind: Any, value: Any, *allowed: Any) -> Any:
    if type(value) not in allowed:
        raise TypeError(f"{str(value)[:80]!r} is not {getattr(kind, '__name__', kind)}")
    return value
