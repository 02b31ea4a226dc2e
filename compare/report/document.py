"""Hold the parts of a report in any format: sections and tables. `compare.report.sections` fills them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compare.report.plots.canvas import Absent, Picture


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        name: short, unique in its section.
        caption: a sentence on the content.
        columns: the column heads.
        rows: one text for each column.
        basis: workload, n, interval and hardware, for a table that stands alone.
        marked: rows, from 0, that need attention. Each also says so in words.
        nested: rows, from 0, that belong to the row above them. They are indented.
        prose: whether cells hold words, which may be wrapped, rather than figures.
        detail: whether the table is long. Formats for print leave it out.
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

    def find_words(self) -> frozenset[int]:
        """Return the columns, from 0, that hold no figure, so that they are set to the left."""
        columns = range(len(self.columns))
        if self.prose:
            return frozenset(columns)
        figures = {column for row in self.rows for column in columns if any(map(str.isdecimal, row[column]))}
        return frozenset(columns) - figures


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a section: tables, a command, sentences, and a picture or the reason for its absence."""

    lines: Sequence[str] = ()
    command: str = ""
    picture: Picture | Absent | None = None
    tables: Sequence[Table] = ()


@dataclass(frozen=True, kw_only=True)
class Section(Content):
    """Content with a title, and a name that is unique in its part."""

    name: str
    title: str


@dataclass(frozen=True)
class Part:
    """The report of one result.

    Attributes:
        claim: the verdict in short, which begins its sentence.
        verdict: the whole sentence.
        setting: workload and device in a few words.
        heading: the same in full.
        source: which samestep measured it, when and how often.
        sections: in reading order.
    """

    claim: str
    verdict: str
    setting: str
    heading: str
    source: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Report:
    """A whole report of one or several results. Several have an overview. See `Part` for claim and verdict."""

    claim: str
    verdict: str
    overview: Section | None
    parts: Sequence[Part]

    @property
    def evidence(self) -> str:
        """Return the verdict without its claim."""
        return self.verdict.removeprefix(self.claim).strip()

    def pictures(self) -> Mapping[str, Picture]:
        """Return every picture that can be drawn, by a file name without suffix, unique in the report."""
        pictures: dict[str, Picture] = {}
        if self.overview and isinstance(self.overview.picture, Picture):
            pictures[self.overview.picture.name] = self.overview.picture
        for number, part in enumerate(self.parts, start=1):
            prefix = f"{number}-" if self.overview else ""
            for section in part.sections:
                if isinstance(section.picture, Picture):
                    pictures[f"{prefix}{section.picture.name}"] = section.picture
        return pictures

    def undrawn(self) -> Sequence[str]:
        """Return why pictures are missing, each reason once."""
        sections = [section for part in self.parts for section in part.sections]
        reasons = [section.picture.reason for section in sections if isinstance(section.picture, Absent)]
        return list(dict.fromkeys(reasons))
