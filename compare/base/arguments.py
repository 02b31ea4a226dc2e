"""Checks of arguments. A message names an argument as the caller does: as an option, or as in Python."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar, cast

from compare.base.interface import Refused

LARGEST = 2**31 - 1

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OTHERWISE = {"input": "image", "model-args": "arguments"}
"""Options with a different name in Python."""


def check(right: bool, name: str, value: object, allowed: str) -> None:
    """Refuse an argument that is not right.

    Raises:
        Refused: `right` is false.
    """
    if not right:
        raise Refused(f"{name} {value!r} is not allowed; allowed: {allowed}")


def check_type(name: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Check that an argument is of one of these types.

    Raises:
        Refused: it is not.
    """
    check(isinstance(value, kinds), name, value, allowed)


def check_text_list(name: str, value: object, allowed: str) -> None:
    """Check a list of texts.

    Raises:
        Refused: it is none, a single text for example.
    """
    check(is_text_list(value), name, value, allowed)


def check_whole_number(name: str, value: object, least: int) -> None:
    """Check a whole number.

    Raises:
        Refused: it is none, or below `least`, or above `LARGEST`.
    """
    right = type(value) is int and least <= value <= LARGEST  # Python may give anything, True as well
    check(right, name, value, f"a whole number from {least} to {LARGEST}")


def rename_options(message: str, otherwise: Mapping[str, str] = _OTHERWISE) -> str:
    """Return a message with options renamed to Python arguments: `--batch-size` becomes `batch_size`."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: otherwise.get(found[1], found[1].replace("-", "_")), message)


def reword_refusals(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return `call` with its refusals reworded from options to Python arguments."""

    @functools.wraps(call)
    def worded(*given: _P.args, **named: _P.kwargs) -> _T:
        try:
            return call(*given, **named)
        except Refused as error:
            raise type(error)(rename_options(str(error))) from error

    return worded


def is_text_list(value: object) -> bool:
    """Return whether a value is a sequence of texts, and not a single text."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(isinstance(each, str) for each in cast("Sequence[object]", value))
