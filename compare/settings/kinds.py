"""Kinds of values that an option takes. Each checks a value and describes it as a JSON schema.

pytest loads this file at every start, so all heavy imports wait until a value is checked.
"""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

_FEW = 3


class Kind:
    """A kind of value. The command line reads it as `read_as`."""

    read_as: type[Any] = str

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return "a text"

    def is_right(self, value: object) -> bool:
        """Return whether a value is allowed."""
        return isinstance(value, self.read_as)

    def show(self, value: object) -> str:
        """Return a value as a message shows it."""
        return repr(value)

    def describe_allowed(self, write_truth: Callable[[bool], str]) -> str:
        """Return the values that are allowed, with True and False as `write_truth` gives them."""
        del write_truth
        return self.allowed

    def check(self, flag: str, value: object, write_truth: Callable[[bool], str] = str) -> None:
        """Check the value of an option. Messages have True and False as `write_truth` gives them.

        Raises:
            Refused: the value is not allowed.
        """
        from compare.base.errors import Refused, suggest

        if not self.is_right(value):
            question = suggest(value, self.list_names()) if isinstance(value, str) else ""
            shown = write_truth(value) if isinstance(value, bool) else self.show(value)
            raise Refused(f"{flag} {shown} is not allowed; {question}allowed: {self.describe_allowed(write_truth)}")

    def list_names(self) -> Sequence[str]:
        """Return the names that are allowed, if nothing else is."""
        return ()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value in a result file."""
        return {"type": "string"}


class Text(Kind):
    """Any text."""


class Texts(Kind):
    """A list of texts."""

    read_as = list

    def __init__(self, allowed: str = "a list of texts") -> None:
        self._allowed = allowed

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return self._allowed

    def is_right(self, value: object) -> bool:
        """Return whether a value is a sequence of texts, and not a single text."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        return all(isinstance(text, str) for text in cast("Sequence[object]", value))


class Choices(Texts):
    """A list of some names. `names` returns all of them when they are needed."""

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        super().__init__()
        self._names = names

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return ", ".join(self._names())

    def is_right(self, value: object) -> bool:
        """Return whether a value is a sequence of such names."""
        return super().is_right(value) and set(cast("Sequence[str]", value)) <= set(self._names())

    def show(self, value: object) -> str:
        """Return the names as a user writes them."""
        return ", ".join(cast("Sequence[str]", value)) if super().is_right(value) else repr(value)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value in a result file."""
        return {"type": "array", "items": {"enum": list(self._names())}}


class Switch(Kind):
    """On or off."""

    read_as = bool

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return self.describe_allowed(str)

    def describe_allowed(self, write_truth: Callable[[bool], str]) -> str:
        """Return the values that are allowed, as `write_truth` gives them."""
        return f"{write_truth(True)}, {write_truth(False)}"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value in a result file."""
        return {"type": "boolean"}


class Whole(Kind):
    """A whole number from `least` to the largest that fits into 31 bits."""

    read_as = int

    def __init__(self, least: int, most: int = 2**31 - 1) -> None:
        self._least, self._most = least, most

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return f"a whole number from {self._least} to {self._most}"

    def is_right(self, value: object) -> bool:
        """Return whether a value is such a number. True and False are not, although Python treats them as 1 and 0."""
        return type(value) is int and self._least <= value <= self._most

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value in a result file."""
        return {"type": "integer", "minimum": self._least}


class Wholes(Kind):
    """Increasing whole numbers, as a list or as a text such as 1,32."""

    _MOST_NUMBERS, _MOST_DIGITS = 64, 9

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return "increasing whole numbers from 1 on, such as 1,32"

    def is_right(self, value: object) -> bool:
        """Return whether a value is such a list, or a text of one."""
        numbers = self.read(value)
        return 0 < len(numbers) <= self._MOST_NUMBERS and all(map(lambda a, b: a < b, (0, *numbers), numbers))

    def read(self, value: object) -> tuple[int, ...]:
        """Return the numbers of a list or a text, and none if it is neither."""
        if isinstance(value, str):
            parts = value.split(",")
            is_list = all(part.isascii() and part.isdigit() and len(part) <= self._MOST_DIGITS for part in parts)
            return tuple(map(int, parts)) if is_list else ()
        if not isinstance(value, Sequence):
            return ()
        numbers = tuple(cast("Sequence[Any]", value))
        return numbers if all(type(number) is int for number in numbers) else ()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value in a result file."""
        return {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}}


class Number(Kind):
    """A number above 0, up to `most`."""

    read_as = float

    def __init__(self, allowed: str, most: float, *, below: bool = False) -> None:
        """`below` leaves out `most` itself."""
        self._allowed, self._most, self._below = allowed, most, below

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return self._allowed

    def is_right(self, value: object) -> bool:
        """Return whether a value is such a number. NaN is not."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return 0 < value < self._most or (value == self._most and not self._below)

    def show(self, value: object) -> str:
        """Return a value as a message shows it: a number without needless digits."""
        return f"{value:.12g}" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value in a result file."""
        most = {"exclusiveMaximum" if self._below else "maximum": self._most}
        return {"type": "number", "exclusiveMinimum": 0, **most}


def _read_percentage(text: str) -> float:
    """Return the number of a text such as 0.01 or 1%. Raise a ValueError for any other text."""
    text = text.strip()
    return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)


class Share(Number):
    """A number above 0 and below 1. The command line takes a percentage, too."""

    def __init__(self, allowed: str) -> None:
        super().__init__(allowed, 1, below=True)

    def parse(self, text: str) -> float | str:
        """Return the number of a text such as 0.01 or 1%, and any other text as it is."""
        try:
            return _read_percentage(text)
        except ValueError:
            return text


class Fraction(Kind):
    """A fraction, or a percentage: `3%` and `0.03` are the same."""

    _WRITTEN = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9}) ?(?P<percent>%?)")

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return "3%, or a part below 1, as 0.03"

    def is_right(self, value: object) -> bool:
        """Return whether a value is a fraction. A text of 1 or more without a percent sign is hardly meant."""
        if isinstance(value, str):
            match = self._WRITTEN.fullmatch(value.strip())
            return match is not None and (match["percent"] == "%" or float(match["number"]) < 1)
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf

    def read(self, value: float | str) -> float:
        """Return the number that an allowed value stands for."""
        return _read_percentage(value) if isinstance(value, str) else float(value)

    def show(self, value: object) -> str:
        """Return a value as a message shows it, shortened."""
        from compare.base.untrusted import SHORT

        return SHORT.repr(value)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value in a result file."""
        return {"type": "number", "minimum": 0}


class Choice(Kind):
    """One of some names. `names` returns them when they are needed."""

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        self._names = names

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return ", ".join(self._names())

    def is_right(self, value: object) -> bool:
        """Return whether a value is one of the names."""
        return isinstance(value, str) and value in self._names()

    def list_names(self) -> Sequence[str]:
        """Return the names that are allowed, unless they are so few that a reader sees them at once."""
        names = self._names()
        return names if len(names) > _FEW else ()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value in a result file."""
        return {"enum": list(self._names())}


class PathOf(Kind):
    """A path: a text or a `Path`. The command line reads it as `read_as`."""

    def __init__(self, allowed: str, read_as: type[Any] = str) -> None:
        self._allowed, self.read_as = allowed, read_as

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return self._allowed

    def is_right(self, value: object) -> bool:
        """Return whether a value is a path that is not empty."""
        return isinstance(value, str | Path) and value != ""


class Instance(Kind):
    """An object of certain classes. `classes` returns them when they are needed."""

    def __init__(self, allowed: str, classes: Callable[[], tuple[type, ...]]) -> None:
        self._allowed, self._classes = allowed, classes

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        return self._allowed

    def is_right(self, value: object) -> bool:
        """Return whether a value is such an object."""
        return isinstance(value, self._classes())
