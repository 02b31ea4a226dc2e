"""What a report consists of, whatever its format: parts, sections, tables. `compare.report.sections` fills them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compare.report.plots.canvas import Absent, Picture


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        name: short, unique in its section.
        caption: what it shows.
        columns: the heads.
        rows: one text a column.
        basis: on what it rests, for where it stands alone: workload, n, interval, hardware.
        marked: numbers of the rows, from 0, that ask for attention; each also says so in words.
        nested: numbers of the rows, from 0, that are about the row above them; they are indented.
        prose: whether cells hold words, which may be broken into lines, rather than figures.
        detail: whether it is long and for those who look closer; formats for print leave it out.
    """

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    basis: str = ""
    marked: frozenset[int] = frozenset()
    nested: frozenset[int] = frozenset()
    prose: bool = False
    detail: bool = False


@dataclass(frozen=True)
class Section:
    """A titled part of a report: sentences, a command, a picture or the reason why there is none, and tables."""

    name: str
    title: str
    lines: Sequence[str] = ()
    command: str = ""
    picture: Picture | Absent | None = None
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Part:
    """What a report says of one result.

    Attributes:
        claim: how the sentence of the verdict begins: what it says in short.
        verdict: the sentence.
        setting: what was trained on what, in a few words.
        heading: the same in full.
        source: which samestep measured it, when and how often.
        sections: in the order in which they are read.
    """

    claim: str
    verdict: str
    setting: str
    heading: str
    source: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Report:
    """A whole report: of one result, or of several with an overview before them; claim and verdict as in `Part`."""

    claim: str
    verdict: str
    overview: Section | None
    parts: Sequence[Part]

    @property
    def evidence(self) -> str:
        """Return the verdict's sentence after its claim."""
        return self.verdict.removeprefix(self.claim).strip()

    def pictures(self) -> Mapping[str, Picture]:
        """Return every picture that can be drawn, by a file name without ending that is unique in the report."""
        found: dict[str, Picture] = {}
        if self.overview and isinstance(self.overview.picture, Picture):
            found[self.overview.picture.name] = self.overview.picture
        for number, part in enumerate(self.parts, start=1):
            prefix = f"{number}-" if self.overview else ""
            for section in part.sections:
                if isinstance(section.picture, Picture):
                    found[f"{prefix}{section.picture.name}"] = section.picture
        return found

    def undrawn(self) -> Sequence[str]:
        """Return why there are no pictures where there could be some, each reason once."""
        sections = [section for part in self.parts for section in part.sections]
        return list(dict.fromkeys(each.picture.reason for each in sections if isinstance(each.picture, Absent)))
