"""Tell which samestep wrote a text, and compare its figures and verdicts with a text that this samestep writes.

Two versions of samestep may choose other words for the same figures, so words are compared only within one version.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from compare import __version__
from compare.base import typed_json
from compare.base.typed_json import Json
from compare.machine import environment

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_DIGITS_SHOWN = 12  # of a commit
_UNKNOWN = "unknown"
_VERDICT = r"\b(?:FASTER|SLOWER|EQUIVALENT|INCONCLUSIVE|INVALID)\b"
_FIGURE = rf"(?:(?<!\d)-)?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?|{_VERDICT}|\b(?:pass|fail)\b"
"""A number, also within a name, or a verdict."""


@dataclass(frozen=True)
class Writer:
    """One samestep, as it describes itself.

    Attributes:
        version: its version.
        commit: of its checkout; None for an installed package, `unknown` if it was not recorded.
        is_changed: whether the checkout had, or may have had, uncommitted changes.
    """

    version: str
    commit: str | None
    is_changed: bool

    def __str__(self) -> str:
        if self.commit is None:
            return f"samestep {self.version}"
        changes = " with changes" if self.is_changed and self.commit != _UNKNOWN else ""
        return f"samestep {self.version} (commit {self.commit[:_DIGITS_SHOWN]}{changes})"

    def has_words_of(self, other: "Writer") -> bool:
        """Tell whether both certainly choose the same words."""
        return self == other and not self.is_changed


@functools.cache
def describe_this() -> Writer:
    """Return this samestep."""
    return read_writer(__version__, typed_json.write(environment.describe_checkout()))


def read_writer(version: Json, git: Json) -> Writer:
    """Return the samestep of a file's values, which may be anything.

    Args:
        version: its version.
        git: `compare.machine.environment.describe_checkout` of it.
    """
    version = version if isinstance(version, str) else "of an unknown version"
    if git is None:
        return Writer(version, None, False)
    values = git if isinstance(git, dict) else {}
    commit = values.get("commit")
    is_known = isinstance(commit, str) and _COMMIT.fullmatch(commit)
    return Writer(version, str(commit) if is_known else _UNKNOWN, values.get("dirty") is not False)


def find_unmatched(stored: str, new: str, names: Iterable[str] = ()) -> str | None:
    """Return the first figure that a stored text and the new one do not share, if any.

    Figures are numbers, verdicts and the given names of contenders. Each figure of the stored text must be in the new
    one, in the same order. Of the figures that only the new text has, verdicts alone count.
    """
    longest_first = [re.escape(name) for name in sorted(names, key=len, reverse=True)]
    if added := _find_extra("|".join([*longest_first, _FIGURE]), stored, new):
        return f"{added[0]!r} in line {added[1]}"
    if missing := _find_extra(_VERDICT, new, stored):
        return f"no {missing[0]!r} as in line {missing[1]} of this one's"
    return None


def _find_extra(pattern: str, text: str, other: str) -> tuple[str, int] | None:
    """Return the first match in a text, and its line, that another text does not have in the same order."""
    rest = (match[0] for match in re.finditer(pattern, other))
    for match in re.finditer(pattern, text):
        if match[0] not in rest:  # `in` consumes all matches up to this one
            return match[0], text.count("\n", 0, match.start()) + 1
    return None
