"""Reading files that anybody may have written: bounded in bytes, values, digits and depth before they cost anything."""

import codecs
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from reprlib import Repr
from typing import Any, NoReturn, cast

from compare.base.interface import Refused

SIZE_LIMIT = 64 * 2**20
"""Most bytes of a JSON file."""

ITEM_LIMIT = 5_000_000
"""Most values of a JSON file: each takes some 70 bytes of memory, however short it is in the file."""

TEXT_LIMIT, KEY_LIMIT, TOTAL_TEXT_LIMIT = 10_000, 1_000, 4_000_000
"""Most characters of a text and of a key in a JSON file, and of all texts together, with each different key once."""

DIGIT_LIMIT = 1000  # beyond, int() takes quadratic time where somebody has lifted Python's own limit
DEPTH_LIMIT = 32
_INTEGER_LIMIT = 2**63  # beyond it no other JSON reader agrees on the value
_PATH_LENGTH = 200

SHORT = Repr()
"""Quotes a value in a message, in few and printable characters."""
SHORT.maxstring = SHORT.maxother = 60


def read(path: Path, limit: int, kind: str) -> bytes:
    """Return the bytes of a regular file. Its size is checked against `limit` before anything is read.

    Raises:
        Refused: for a file that cannot be read, is none, or is larger; `kind` says in the message what is allowed.
    """
    try:
        if path.exists() and not path.is_file():
            raise Refused(f"is not a regular file; allowed: {kind}")
        with path.open("rb") as stream:
            data = b"" if os.fstat(stream.fileno()).st_size > limit else stream.read(limit + 1)
            size = max(len(data), os.fstat(stream.fileno()).st_size)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise Refused(f"cannot be read: {getattr(error, 'strerror', None) or error}; allowed: {kind}") from None
    if size > limit:
        raise Refused(f"is too large; allowed: at most {limit:,} bytes")
    return data


def check_size(data: bytes) -> None:
    """Check the size of a JSON text, without parsing it.

    Raises:
        Refused: for more than `SIZE_LIMIT` bytes or, all commas and opening brackets counted, `ITEM_LIMIT` values.
    """
    if len(data) > SIZE_LIMIT:
        raise Refused(f"has {len(data):,} bytes; allowed: at most {SIZE_LIMIT:,}")
    if sum(data.count(sign) for sign in (b",", b"[", b"{")) > ITEM_LIMIT:
        raise Refused(f"holds too many values; allowed: at most {ITEM_LIMIT:,}")


def parse(data: bytes, allowed: str = "a JSON object") -> Any:
    """Return the value of a JSON text, before which some editors write a byte order mark (RFC 8259, section 8.1).

    `allowed` says in messages which files are expected.

    Raises:
        Refused: as `check_size`, for an empty text, for what is not UTF-8 or not complete, valid JSON, for NaN and
            Infinity, a key twice in one object, more than `DIGIT_LIMIT` digits in an integer, too deep a nesting, or
            too long texts.
    """
    check_size(data)
    if not data:
        raise Refused(f"is empty; allowed: {allowed}")
    try:
        value = json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer
        )
    except UnicodeDecodeError as error:
        raise Refused(f"is no text file: byte {error.start} is not UTF-8; allowed: {allowed}") from None
    except json.JSONDecodeError as error:
        if not data.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"{", b"[")):
            raise Refused(f"is no JSON file; allowed: {allowed}") from None
        place = f"line {error.lineno}, column {error.colno}"
        reason = f"{error.msg.removesuffix(' at')} at {place}"
        raise Refused(f"is not complete, valid JSON: {reason}; allowed: {allowed}") from None
    except RecursionError:
        raise Refused(f"is nested too deeply; allowed: {DEPTH_LIMIT} levels") from None
    _check_texts(value)
    return value


def _check_texts(whole: Any) -> None:
    """Check the lengths of all texts and keys. Reports take seconds for each million characters."""
    keys, total, waiting = set[str](), 0, [whole]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if len(value) > TEXT_LIMIT:
                raise Refused(f"holds {SHORT.repr(value)}, which is too long; allowed: {TEXT_LIMIT:,} characters")
            total += len(value)
        elif isinstance(value, dict):
            keys.update(cast("dict[str, Any]", value))
            waiting += cast("dict[str, Any]", value).values()
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)
    if longest := next((key for key in keys if len(key) > KEY_LIMIT), None):
        raise Refused(f"holds {SHORT.repr(longest)}, which is too long; allowed: {KEY_LIMIT:,} characters")
    if total + sum(map(len, keys)) > TOTAL_TEXT_LIMIT:
        raise Refused(f"holds too much text; allowed: {TOTAL_TEXT_LIMIT:,} characters in all")


def check_plain(value: Any, path: str = "", depth: int = 0) -> None:
    """Check that a value holds only what JSON can, in a form on which all its readers agree.

    Raises:
        Refused: with the path of the first fault, for NaN and infinity, integers outside 64 bits, keys that are not
            strings, other types, and more than `DEPTH_LIMIT` levels.
    """
    if value is None or isinstance(value, (str, bool)):
        return
    where = shorten_place(path)
    if depth > DEPTH_LIMIT:
        raise Refused(f"{where} is nested too deeply or contains itself; allowed: {DEPTH_LIMIT} levels")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(f"{where} is {value}; allowed: a finite number, or null where the schema has it")
    elif isinstance(value, int):
        if not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
            raise Refused(f"{where} is an integer of {value.bit_length()} bits; allowed: 64-bit integers")
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise Refused(f"{where} has the key {SHORT.repr(key)}; allowed: strings")
            check_plain(item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("Sequence[Any]", value)):
            check_plain(item, f"{path}[{index}]", depth + 1)
    else:
        raise Refused(f"{where} is of type {type(value).__name__}; allowed: JSON types")


def shorten_place(path: str) -> str:
    """Return the place of a fault for a message, whatever keys it goes through."""
    return (path if len(path) <= _PATH_LENGTH else f"{path[:_PATH_LENGTH]}...") or "the result"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise Refused(f"holds the key {SHORT.repr(key)} twice in one object; allowed: once")
        result[key] = value
    return result


def _no_constant(literal: str) -> NoReturn:
    raise Refused(f"holds the literal {literal}, which is no JSON; allowed: finite numbers and null")


def _integer(digits: str) -> int:
    if len(digits) > DIGIT_LIMIT:
        raise Refused("holds an integer of too many digits; allowed: 64-bit integers")
    return int(digits)
