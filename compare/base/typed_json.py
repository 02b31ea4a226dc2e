"""Reads JSON objects into dataclasses and writes them back, as the dataclasses' type hints say: `read` and `write`.

A field has the name of its key. A field without a default is a required key. A field with a default may be absent. It
is not written while it equals its default, unless its metadata is `ALWAYS`. Keys that the dataclass does not name are
kept in its field `extra`, if it has one, and dropped otherwise. Nothing is checked here: check the value against its
schema first.
"""

import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
else:
    Json = object

EXTRA = "extra"
ALWAYS = {"always": True}
"""Metadata of a field with a default that is written all the same."""

_Kind = TypeVar("_Kind")
_Convert: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class JsonObject:
    """A dataclass that keeps the keys that it does not name."""

    extra: Mapping[str, Json] = field(default_factory=dict[str, Json], repr=False)


def read(kind: type[_Kind], value: Any) -> _Kind:
    """Return a checked JSON value as an object of the given dataclass.

    Raises:
        KeyError: for a required key that is not there.
    """
    return _reader(kind)(value)


def to_text(value: Any) -> str:
    """Return the JSON of an object as a text for people.

    Raises:
        ValueError: for NaN and infinity.
    """
    return json.dumps(write(value), indent=2, allow_nan=False)


def write(value: Any) -> Any:
    """Return a dataclass, or anything that holds dataclasses, as JSON types."""
    if is_dataclass(value):
        return _write_object(value)
    if isinstance(value, Mapping):
        return {key: write(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [write(item) for item in cast("Sequence[Any]", value)]
    return value


def _write_object(value: Any) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for each in fields(value):
        item = getattr(value, each.name)
        if each.name != EXTRA and (_is_required(each) or "always" in each.metadata or item != _default(each)):
            written[each.name] = write(item)
    return {**written, **write(getattr(value, EXTRA, {}))}


def _is_required(each: "Field[Any]") -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _default(each: "Field[Any]") -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


@lru_cache
def _reader(kind: Any) -> _Convert:
    """Return the function that converts a JSON value to the given type."""
    if is_dataclass(kind):
        return _object_reader(cast("type", kind))
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is Mapping and _reader(arguments[1]) is not _keep:
        convert = _reader(arguments[1])
        return lambda value: {key: convert(item) for key, item in value.items()}
    if origin is types.UnionType:
        (convert,) = {_reader(each) for each in arguments} - {_keep} or {_keep}
        return _keep if convert is _keep else lambda value: None if value is None else convert(value)
    return _keep


def _keep(value: Any) -> Any:
    return value


def _tuple_reader(arguments: tuple[Any, ...]) -> _Convert:
    convert = _reader(arguments[0])  # of windows and of lists alike, all items have one type
    return tuple if convert is _keep else lambda value: tuple(map(convert, value))


def _object_reader(kind: type) -> _Convert:
    hints = get_type_hints(kind)
    named = [each for each in fields(kind) if each.name != EXTRA]
    readers = {each.name: _reader(hints[each.name]) for each in named}
    required = [each.name for each in named if _is_required(each)]
    keeps_extra = EXTRA in hints

    def convert(value: Mapping[str, Any]) -> Any:
        values = {name: value[name] for name in required}
        values |= {name: value[name] for name in readers if name in value}
        known = {name: readers[name](item) for name, item in values.items()}
        extra = {key: item for key, item in value.items() if key not in readers} if keeps_extra else {}
        return kind(**known, **({EXTRA: extra} if extra else {}))

    return convert
