"""Whether a bundle is what it says: its hashes, its schema, and every time, verdict and gate that it has samples of.

The words of a report and of reasons are made again, too, and another samestep may choose others. Of its words only the
figures and verdicts in them can be held against what this one writes. What is not checked is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.base.interface import Refused
from compare.base.untrusted import SHORT
from compare.reproduce import archive, authorship, bundle, recompute
from compare.reproduce.authorship import Writer
from compare.reproduce.recompute import Mismatch
from compare.results import model, result_file

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One question about a bundle, which holds where there are no `problems` and nothing was left `unchecked`."""

    question: str
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether all was checked, without a problem."""
        return not self.problems and not self.unchecked


def verify(data: bytes) -> tuple[Object, list[Check]]:
    """Return the result that a bundle holds, and what was checked of it. Nothing is fetched, executed or written.

    Raises:
        Refused: for what is no bundle (`compare.reproduce.archive.unpack`), lacks a member, is of a newer format, or
            holds a result that cannot be read (`compare.results.result_file.parse`).
    """
    members = archive.unpack(data, bundle.MEMBERS)
    if missing := sorted(bundle.MEMBERS - members.keys()):
        raise Refused(f"lacks {', '.join(missing)}; allowed: a bundle, whole")
    packer = bundle.packed_by(members[bundle.ABOUT])
    digests = bundle.manifest(members[bundle.SUMS])
    try:
        result = model.to_json(result_file.parse(members[bundle.RESULT]))
    except Refused as error:
        raise Refused(f"{bundle.RESULT} {error}") from None
    found = recompute.mismatches(result)
    return result, [
        Check("every hash holds", tuple(_wrong_hashes(members, digests))),
        Check("the result keeps to its schema"),
        Check(
            "every time, verdict and gate comes again from the raw samples",
            tuple(_differs(each) for each in found if not each.worded),
        ),
        _reasons(result, [each for each in found if each.worded]),
        *_rendered(members, result, packer),
    ]


def _wrong_hashes(members: Mapping[str, bytes], digests: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(members.keys() - {bundle.SUMS}):
        if name not in digests:
            yield f"{name} has no digest in {bundle.SUMS}"
        elif digests[name] != bundle.digest(members[name]):
            yield f"{name} is not what {bundle.SUMS} says: {bundle.digest(members[name])}"


def _differs(each: Mismatch) -> str:
    if each.missing:
        return f"{each.place} is missing, of a pair that passes"
    return f"{each.place} is {SHORT.repr(each.stored)}, the raw samples give {SHORT.repr(each.recomputed)}"


def _reasons(result: Object, differing: Sequence[Mismatch]) -> Check:
    told = result["environment"]
    author, here = authorship.told(told.get("samestep"), told.get("git", "not told")), authorship.here()
    problems, unchecked = list[str](), list[str]()
    for each in differing:
        if author.words_as(here) or authorship.unmatched(each.stored, each.recomputed):
            problems.append(_differs(each))
        else:
            unchecked.append(
                f"{_differs(each)}; the result is of {author}, this is {here}, which may word it otherwise"
            )
    return Check("every reason comes again from the raw samples, word for word", tuple(problems), tuple(unchecked))


def _rendered(members: Mapping[str, bytes], result: Object, packer: Writer) -> Iterator[Check]:
    here = authorship.here()
    for name, made in bundle.rendered(result).items():
        question, stored = f"{name} is made of the result", members[name]
        if stored == made:
            yield Check(question)
        elif name != bundle.REPORT or packer.words_as(here):
            yield Check(question, (f"it is not what {here} makes of the result",))
        else:
            names = [each["name"] for each in result["contenders"]]
            yield _reworded(question, stored, made, names, f"{packer} wrote it, this is {here}")


def _reworded(question: str, stored: bytes, made: bytes, names: Sequence[str], who: str) -> Check:
    text = stored.decode("utf-8", "surrogateescape")  # surrogates are not printable
    if not text.replace("\n", "").isprintable():
        return Check(question, ("it holds what no report does: characters that steer a display, or are no UTF-8",))
    if place := authorship.unmatched(text, made.decode("utf-8"), names):
        problem = f"it has {place}: not what the result gives there; {who}: verify it with that one"
        return Check(question, (problem,))
    told = "each figure, verdict and contender in it is in this one's report, in this order"
    return Check(question, unchecked=(f"its words, and what it leaves out, were not checked: {who}; {told}",))
