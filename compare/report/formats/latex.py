r"""Write LaTeX to \input into a paper: tables in booktabs style, and figures if their files are written too.

Captions state n, interval and hardware. Text that belongs to no table stands in comments.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from compare.base.interface import Refused
from compare.report.document import Report, Section, Table
from compare.report.formats import Format
from compare.report.plots.canvas import WIDTH, Picture
from compare.report.sentences import make_plain

PACKAGES = r"\usepackage{array,booktabs,graphicx}"

_NARROW = 4  # columns of figures that fit into one column of a two-column paper
_LONG_WORD, _LONGEST_RUN = 16, 8
_LEAST_SHARE, _MOST_SHARE = 10, 32
_COMMANDS = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "[": "{[}",  # at the start of a row, TeX takes [ and * for arguments of the line break before it
    "*": "{*}",
    "\N{EN DASH}": "--",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{MICRO SIGN}": r"\ensuremath{\mu}",
    "\N{DEGREE SIGN}": r"\ensuremath{^\circ}",
} | {character: f"\\{character}" for character in "{}$&#%_"}
# Letters that every TeX font can compose. Others are written as their code point.
_LETTERS = set("ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿ")
_LIGATURE = re.compile(r"([-`'!?,])(?=[-`'])")
_READABLE = re.compile(r"[0-9A-Za-z ._/+=-]*")
_BREAK = re.compile(rf"([^0-9A-Za-z]|[0-9A-Za-z]{{{_LONGEST_RUN}}})(?=.)")


def render(report: Report, pictures: Mapping[str, str]) -> str:
    """Return the report.

    Args:
        report: the content.
        pictures: path of each picture's PDF, by its name in `report.pictures()`; others are left out.

    Raises:
        Refused: for a path that LaTeX cannot read.
    """
    _check_paths(pictures.values())
    blocks = [f"% {make_plain(report.verdict)}\n% Needs {PACKAGES}. Paths of pictures start from this file's folder."]
    if report.overview:
        blocks += _render_section(report.overview, "", pictures)
    for number, part in enumerate(report.parts, start=1):
        blocks.append(f"% {make_plain(part.verdict)}\n% {make_plain(part.heading)}\n% {make_plain(part.source)}")
        for section in part.sections:
            blocks += _render_section(section, f"{number}-" if report.overview else "", pictures)
    return "\n\n".join(blocks) + "\n"


FORMAT = Format(
    "latex",
    "Write tables in booktabs style, for \\input.",
    lambda report, _, pictures: render(report, pictures),
    pictures="pdf",
)


def _check_paths(paths: Iterable[str]) -> None:
    for path in paths:
        if not _READABLE.fullmatch(path):
            raise Refused(f"LaTeX cannot read the path {path}; allowed: letters, digits, spaces and ._/+=-")


def escape(text: str) -> str:
    """Return LaTeX that prints exactly the given text. LaTeX may break long words."""
    return " ".join(map(_escape_word, make_plain(text).split(" ")))


def _escape_word(word: str) -> str:
    if len(word) > _LONG_WORD:
        return r"\allowbreak{}".join(map(_escape, _BREAK.sub("\\1\0", word).split("\0")))
    return _escape(word)


def _escape(text: str) -> str:
    return "".join(map(_escape_character, _LIGATURE.sub("\\1\0", text))).replace("\0", "{}")


def _escape_character(character: str) -> str:
    if character in _COMMANDS:
        return _COMMANDS[character]
    if character.isascii() or character in _LETTERS:
        return character
    return f"{{[}}U+{ord(character):04X}]"


def _render_section(section: Section, prefix: str, pictures: Mapping[str, str]) -> Iterator[str]:
    tables = [table for table in section.tables if not table.detail]
    comments = [f"% {section.title}"]
    if section.picture and not isinstance(section.picture, Picture):
        comments.append(f"% Nothing is drawn: {make_plain(section.picture.reason)}.")
    if not tables:
        comments += [f"% {make_plain(line)}" for line in section.lines]
    yield "\n".join(comments)
    if isinstance(section.picture, Picture):
        name = f"{prefix}{section.picture.name}"
        if name in pictures:
            yield _render_figure(section.picture, pictures[name], f"{prefix}{section.name}")
    notes = [*section.lines, *([f"Command: {section.command}"] if section.command else [])]
    for index, table in enumerate(tables):
        yield _render_table(table, () if index else notes, f"{prefix}{section.name}-{table.name}")


def _render_figure(picture: Picture, path: str, label: str) -> str:
    return "\n".join(
        [
            r"\begin{figure}",
            r"  \centering",
            rf"  \includegraphics[width=\ifdim\linewidth<{WIDTH}in\linewidth\else{WIDTH}in\fi]{{{path}}}",
            rf"  \caption{{{escape(picture.caption)} {escape(picture.basis)}}}",
            rf"  \label{{fig:samestep-{label}}}",
            r"\end{figure}",
        ]
    )


def _render_table(table: Table, notes: Sequence[str], label: str) -> str:
    count = len(table.columns)
    environment = "table*" if table.prose or count > _NARROW else "table"
    caption = " ".join(escape(text) for text in (table.caption, table.basis, *(_end(note) for note in notes)) if text)
    rows = [
        (r"\quad " if index in table.nested else "")
        + " & ".join(rf"\textbf{{{escape(cell)}}}" if index in table.marked else escape(cell) for cell in row)
        for index, row in enumerate(table.rows)
    ]
    return "\n".join(
        [
            rf"\begin{{{environment}}}",
            r"  \centering\small",
            rf"  \caption{{{caption}}}",
            rf"  \label{{tab:samestep-{label}}}",
            rf"  \begin{{tabular}}{{@{{}}{_format_columns(table)}@{{}}}}",
            r"    \toprule",
            rf"    {' & '.join(map(escape, table.columns))} \\",
            r"    \midrule",
            *(rf"    {row} \\" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            rf"\end{{{environment}}}",
        ]
    )


def _format_columns(table: Table) -> str:
    """Return the format of the columns. Columns of prose share the line in proportion to their longest texts."""
    count = len(table.columns)
    if not table.prose:
        words = table.find_words()
        return "l" + "".join("l" if column in words else "r" for column in range(1, count))
    longest = [max(len(row[index]) for row in (table.columns, *table.rows)) for index in range(count)]
    shares = [min(max(length, _LEAST_SHARE), _MOST_SHARE) for length in longest]
    free = rf"\dimexpr\linewidth-{2 * count - 2}\tabcolsep\relax"
    widths = [rf"\dimexpr{free}*{share}/{sum(shares)}\relax" for share in shares]
    return "".join(rf">{{\raggedright\arraybackslash}}p{{{width}}}" for width in widths)


def _end(line: str) -> str:
    return line if line.endswith(".") else f"{line}."
