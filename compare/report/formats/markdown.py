"""Write Markdown with GitHub's tables, for a page of a repository, an issue or a pull request."""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from compare.report.document import Report, Section, Table
from compare.report.formats import Format
from compare.report.plots.canvas import Absent, Picture
from compare.report.sentences import make_plain

_MARKUP = re.compile(r"([\\`*_{}\[\]<>|~$&#!])")
_LINK = re.compile(r"(?i)(:)(?=//)|(?<=www)(\.)|(@)")
_LIST = re.compile(r"^([-+=]|\d+[.)])(?=\s|$|[-=]+$)")


def render(report: Report, pictures: Mapping[str, str]) -> str:
    """Return the report.

    Args:
        report: the content.
        pictures: link from this page to each picture, by its name in `report.pictures()`; others are left out.
    """
    blocks = [f"# {escape(report.verdict)}"]
    if report.overview:
        blocks += _render_section(report.overview, "##", "", pictures)
    for number, part in enumerate(report.parts, start=1):
        several = report.overview is not None
        if several:
            blocks.append(f"## {number}. {escape(part.verdict)}")
        blocks += [escape(part.heading), escape(part.source)]
        for section in part.sections:
            blocks += _render_section(section, "###" if several else "##", f"{number}-" if several else "", pictures)
    return "\n\n".join(blocks) + "\n"


FORMAT = Format(
    "markdown",
    "Write tables for GitHub.",
    lambda report, _, pictures: render(report, {name: quote(path) for name, path in pictures.items()}),
    pictures="svg",
)


def escape(text: str) -> str:
    """Return Markdown that shows exactly the given text, on one line."""
    text = _MARKUP.sub(r"\\\1", make_plain(text))
    text = _LINK.sub(lambda match: f"&#{ord(match[0])};", text)  # a backslash does not stop GitHub's own links
    return _LIST.sub(lambda match: f"&#{ord(match[0][0])};{match[0][1:]}", text)  # nor does it hide a list's number


def _render_section(section: Section, level: str, prefix: str, pictures: Mapping[str, str]) -> Iterator[str]:
    yield f"{level} {escape(section.title)}"
    if section.command:
        yield f"    {make_plain(section.command)}"
    if isinstance(section.picture, Absent):
        yield f"Nothing is drawn: {escape(section.picture.reason)}."
    elif isinstance(section.picture, Picture) and (link := pictures.get(f"{prefix}{section.picture.name}")):
        yield f"![{escape(section.picture.title)}](<{link}>)"
        yield f"{escape(section.picture.caption)} {escape(section.picture.basis)}"
    elif section.picture:
        yield "`--figures DIR` writes the picture to a file."
    for table in section.tables:
        if not table.detail:
            yield f"{escape(table.caption)} {escape(table.basis)}".strip()
            yield _render_table(table)
    if section.lines:
        yield "\n".join(f"- {escape(line)}" for line in section.lines)


def _render_table(table: Table) -> str:
    words = table.find_words()
    rule = ["---", *("---" if column in words else "---:" for column in range(1, len(table.columns)))]
    rows = [[escape(cell) for cell in row] for row in (table.columns, *table.rows)]
    for index in table.nested:
        rows[index + 1][0] = f"&nbsp;&nbsp;{rows[index + 1][0]}"
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))
