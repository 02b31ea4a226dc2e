"""The ways in which samestep fails, and how messages are made short and printable."""

import difflib
from collections.abc import Iterable

_CUT = " ..."


class Refused(Exception):
    """Input that samestep cannot honour, found before any work starts (exit code 2).

    The message says what was wrong, where, and what is allowed.
    """


class DiskFull(Refused):
    """A disk is full. It may have space again once other jobs have deleted their files."""


class MatchingFailed(Refused):
    """A model crashed, took too long or ran out of memory before there were contenders (exit code 3)."""


class ContenderFailed(Exception):
    """A contender stopped working (exit code 3).

    Attributes:
        status: `oom`, `crash`, `timeout` or `refused`.
        reason: one line for a reader.
        raised: whether its process reported an exception itself.
        disk_full: whether that exception was `DiskFull`.
    """

    def __init__(self, status: str, reason: str, *, raised: bool = False, disk_full: bool = False) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.raised = raised
        self.disk_full = disk_full


def take_first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or `no message`, cut to 400 characters.

    A line that ends in a colon only announces the next one, which is added. torch.compile writes such lines.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    return shorten(" ".join(lines[:2]) if lines[0].endswith(":") else lines[0], 400)


def shorten(text: str, most: int) -> str:
    """Return a text of at most `most` characters. A text that is cut ends after a whole word and ` ...`."""
    if len(text) <= most:
        return text
    kept = text[: most - len(_CUT) + 1]
    return (kept.rpartition(" ")[0] or kept[:-1]).rstrip() + _CUT


def make_printable(text: str) -> str:
    """Return text with a question mark for each character that a terminal would act on."""
    return "".join(character if character.isprintable() else "?" for character in text)


def suggest(word: str, names: Iterable[str]) -> str:
    """Return a question for the names that a word may stand for: those that begin with it, or the nearest one.

    A space stands behind it. It is empty if no name is near.
    """
    names = list(names)
    near = [name for name in names if word and name.startswith(word)] or difflib.get_close_matches(word, names, 1, 0.54)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""
