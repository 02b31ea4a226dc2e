"""Check a bundle: its hashes, its schema, and every time, verdict and gate against the raw samples.

A result without a bundle is checked the same way, except for hashes and members that it does not have.

The words of reports and reasons are checked, too. Another samestep may choose other words. Then only the figures and
verdicts in them are compared. The checks name everything that they could not compare.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compare.base.untrusted import SHORT
from compare.reproduce import archive, authorship, bundle, recompute
from compare.reproduce.authorship import Writer
from compare.reproduce.recompute import Mismatch
from compare.results import result_file
from compare.results.model import Result


@dataclass(frozen=True)
class Check:
    """One question about a bundle, with its problems and the parts that were not checked."""

    question: str
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether everything was checked, without a problem."""
        return not self.problems and not self.unchecked


def verify(data: bytes) -> tuple[Result, list[Check]]:
    """Return the result in a bundle or a result file, and its checks. Nothing is fetched, executed or written.

    Raises:
        Refused: the data are neither, a bundle lacks a member or has a newer format, or the result is not valid.
    """
    if not archive.is_zip(data):
        result = result_file.parse(data)
        return result, _check_result(result)
    members = bundle.read_members(data)
    packer = bundle.read_packer(members[bundle.ABOUT])
    digests = bundle.read_sums(members[bundle.SUMS])
    result = bundle.parse_result(members)
    return result, [
        Check("every hash holds", tuple(_find_wrong_hashes(members, digests))),
        *_check_result(result),
        *_check_members(members, result, packer),
    ]


def _check_result(result: Result) -> list[Check]:
    mismatches = recompute.find_mismatches(result)
    return [
        Check("the result keeps to its schema"),
        Check(
            "every time, verdict and gate comes again from the raw samples",
            tuple(_describe(mismatch) for mismatch in mismatches if not mismatch.is_worded),
        ),
        _check_reasons(result, [mismatch for mismatch in mismatches if mismatch.is_worded]),
    ]


def _find_wrong_hashes(members: Mapping[str, bytes], digests: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(members.keys() - {bundle.SUMS}):
        if name not in digests:
            yield f"{name} has no digest in {bundle.SUMS}"
        elif digests[name] != bundle.digest(members[name]):
            yield f"{name} does not have the digest in {bundle.SUMS}, but {bundle.digest(members[name])}"


def _describe(mismatch: Mismatch) -> str:
    if mismatch.is_missing:
        return f"{mismatch.place} is missing in a pair that passes"
    stored, recomputed = SHORT.repr(mismatch.stored), SHORT.repr(mismatch.recomputed)
    return f"{mismatch.place} is {stored}, the raw samples give {recomputed}"


def _check_reasons(result: Result, mismatches: Sequence[Mismatch]) -> Check:
    facts, this = result.environment.extra, authorship.describe_this()
    author = authorship.read_writer(facts.get("samestep"), facts.get("git", {}))
    problems, unchecked = list[str](), list[str]()
    for mismatch in mismatches:
        texts = str(mismatch.stored), str(mismatch.recomputed)
        if author.has_words_of(this) or authorship.find_unmatched(*texts):
            problems.append(_describe(mismatch))
        else:
            unchecked.append(
                f"{_describe(mismatch)}. The figures in it agree. The words may differ, because {author} wrote the "
                f"result, and this is {this}"
            )
    return Check("every reason comes again from the raw samples, word for word", tuple(problems), tuple(unchecked))


def _check_members(members: Mapping[str, bytes], result: Result, packer: Writer) -> Iterator[Check]:
    this = authorship.describe_this()
    for name, derived in bundle.derive(result).items():
        question, stored = f"{name} follows from the result", members[name]
        if stored == derived:
            yield Check(question)
        elif name != bundle.REPORT or packer.has_words_of(this):
            yield Check(question, (f"it differs from the one that {this} writes for the result",))
        else:
            names = [contender.name for contender in result.contenders]
            yield _check_other_words(question, stored, derived, names, f"{packer} wrote it, this is {this}")


def _check_other_words(question: str, stored: bytes, derived: bytes, names: Sequence[str], versions: str) -> Check:
    text = stored.decode("utf-8", "surrogateescape")  # surrogates are not printable
    if not text.replace("\n", "").isprintable():
        return Check(question, ("it has characters that no report has: control characters, or bytes outside UTF-8",))
    if place := authorship.find_unmatched(text, derived.decode("utf-8"), names):
        problem = (
            f"it has {place}, where the result gives something else. Either it was changed, or reports have changed: "
            f"{versions}. Verify it with that samestep to find out which"
        )
        return Check(question, (problem,))
    return Check(
        question,
        unchecked=(
            f"its figures, verdicts and contenders follow from the result, in the same order. Its other words were not "
            f"compared: {versions}. The result itself does not depend on them. Verify it with that samestep to compare "
            "them, too",
        ),
    )
