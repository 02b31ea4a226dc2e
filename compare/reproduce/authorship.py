"""Which samestep wrote a text, and what of it another one, which may word it otherwise, can still check."""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from compare import __version__
from compare.machine import environment

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_SHOWN = 12  # digits of a commit
_UNKNOWN = "unknown"
_VERDICT = r"\b(?:FASTER|SLOWER|EQUIVALENT|INCONCLUSIVE|INVALID)\b"
_TOLD = rf"(?:(?<!\d)-)?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?|{_VERDICT}|\b(?:pass|fail)\b"
"""A figure, digits in names among them, or a verdict."""


@dataclass(frozen=True)
class Writer:
    """A samestep, as it told of itself.

    Attributes:
        version: its version.
        commit: of its checkout; None where it ran from none, `unknown` where nothing was told.
        changed: whether the checkout held, or may have held, what no commit does.
    """

    version: str
    commit: str | None
    changed: bool

    def __str__(self) -> str:
        if self.commit is None:
            return f"samestep {self.version}"
        changes = " with changes" if self.changed and self.commit != _UNKNOWN else ""
        return f"samestep {self.version} (commit {self.commit[:_SHOWN]}{changes})"

    def words_as(self, other: "Writer") -> bool:
        """Whether the other is known to word everything alike."""
        return self == other and not self.changed


@functools.cache
def here() -> Writer:
    """Return this samestep."""
    return told(__version__, environment.describe_checkout())


def told(version: Any, git: Any) -> Writer:
    """Return the samestep that told this of itself, `git` as `compare.machine.environment.checkout`; both may be anything."""
    version = version if isinstance(version, str) else "of an unknown version"
    if git is None:
        return Writer(version, None, False)
    values = cast("dict[str, Any]", git) if isinstance(git, dict) else {}
    commit = values.get("commit")
    known = isinstance(commit, str) and _COMMIT.fullmatch(commit)
    return Writer(version, commit if known else _UNKNOWN, values.get("dirty") is not False)


def unmatched(stored: str, made: str, names: Iterable[str] = ()) -> str | None:
    """Return what a stored text tells and the one made now does not: None where all of it comes again, in its order.

    Compared are figures, verdicts and the `names` of contenders. One that `made` lacks, or has elsewhere, is returned
    with its line, or the next one is. Of what `made` tells besides, comparisons' verdicts alone are missed.
    """
    longest_first = [re.escape(name) for name in sorted(names, key=len, reverse=True)]
    if added := _first_alone("|".join([*longest_first, _TOLD]), stored, made):
        return f"{added[0]!r} in line {added[1]}"
    if missing := _first_alone(_VERDICT, made, stored):
        return f"{missing[0]!r} no more where line {missing[1]} of this one's has it"
    return None


def _first_alone(pattern: str, text: str, other: str) -> tuple[str, int] | None:
    """Return the first match in a text, and its line, that another text does not have in the same order."""
    rest = (match[0] for match in re.finditer(pattern, other))
    for match in re.finditer(pattern, text):
        if match[0] not in rest:  # which takes from the rest all that comes before it
            return match[0], text.count("\n", 0, match.start()) + 1
    return None
