"""Whether a bundle is what it says: its hashes, its schema, and every time, verdict and gate that it has samples of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compare import __version__, results
from compare.interface import Refused
from compare.reproduction import archive, bundle, recompute
from compare.untrusted import SHORT

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One question about a bundle; `problems` is empty where the answer is yes."""

    question: str
    problems: tuple[str, ...]

    @property
    def held(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


def verify(data: bytes) -> tuple[Object, list[Check]]:
    """Return the result that a bundle holds, and what was checked of it. Nothing is fetched, executed or written.

    Raises:
        Refused: for what is no bundle (`compare.reproduction.archive.unpack`), lacks a member, is of a newer format, or
            holds a result that cannot be read (`compare.results.parse`).
    """
    members = archive.unpack(data, bundle.MEMBERS)
    if missing := sorted(bundle.MEMBERS - members.keys()):
        raise Refused(f"lacks {', '.join(missing)}; allowed: a bundle, whole")
    packer = bundle.packed_by(members[bundle.ABOUT])
    digests = bundle.manifest(members[bundle.SUMS])
    try:
        result = results.parse(members[bundle.RESULT])
    except Refused as error:
        raise Refused(f"{bundle.RESULT} {error}") from None
    return result, [
        Check("every hash holds", tuple(_wrong_hashes(members, digests))),
        Check("the result keeps to its schema", ()),
        Check("every time, verdict and gate comes again from the raw samples", tuple(_wrong_figures(result))),
        *_rendered(members, result, packer),
    ]


def _wrong_hashes(members: Mapping[str, bytes], digests: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(members.keys() - {bundle.SUMS}):
        if name not in digests:
            yield f"{name} has no digest in {bundle.SUMS}"
        elif digests[name] != bundle.digest(members[name]):
            yield f"{name} is not what {bundle.SUMS} says: {bundle.digest(members[name])}"


def _wrong_figures(result: Object) -> Iterator[str]:
    for each in recompute.mismatches(result):
        yield f"{each.place} is {SHORT.repr(each.stored)}, the raw samples give {SHORT.repr(each.recomputed)}"


def _rendered(members: Mapping[str, bytes], result: Object, packer: str) -> Iterator[Check]:
    for name, text in bundle.rendered(result).items():
        same = members[name] == text
        hint = "" if packer == __version__ else f" (samestep {packer} packed it, and may say it otherwise)"
        problem = f"it is not what samestep {__version__} makes of the result{hint}"
        yield Check(f"{name} is made of the result", () if same else (problem,))
