"""Print the terminal report of `samestep compare`.

Nothing depends on colour. Text of a result becomes neither markup nor a control code.
"""

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.report import columns, compact, explanation_text, measurements
from compare.report.document import Section
from compare.report.sections import SECTIONS, warn
from compare.report.sentences import DASH, make_heading, make_plain
from compare.results.model import Result


def render(result: Result, console: Console, *, brief: bool = False) -> None:
    """Print the figures of a result, and the remarks, claims and definitions of its sections.

    `brief` leaves out definitions, and the gates of a certificate that did not fail.
    """

    def say(text: str) -> None:
        console.print(Text(_printable(text, console)), soft_wrap=False)

    contenders = result.contenders
    say(make_heading(result))
    for warning in warn(result):
        say(f"{warning}.")
    say("")
    rows = measurements.make_rows(contenders, result.confidence)
    _print_figures(rows, [contender.name for contender in contenders], console)
    remarks = [line for kind in SECTIONS for line in kind.remarks(result)]
    claims = [line for kind in SECTIONS for line in kind.claims(result)]
    if brief and result.agreement.status != "fail":
        claims = [line for line in claims if not line.startswith(" ")]
    definitions = [] if brief else [line for kind in SECTIONS for line in kind.definitions(result)]
    for index, paragraph in enumerate(lines for lines in (remarks, claims, definitions) if lines):
        for line in [""] * bool(index) + paragraph:
            say(line)
    if result.explanation is not None:
        _print_explanation(result, console)


def _print_explanation(result: Result, console: Console) -> None:
    console.print()
    shown = [*explanation_text.tables(result)[:1], explanation_text.shown_layers(result)]
    for table in filter(None, shown):
        # Numbers and names of kernels would not fit. Pages have them.
        fitting = [index for index, head in enumerate(table.columns) if "kernels" not in head]
        heads, rows = [table.columns[i] for i in fitting], [[row[i] for i in fitting] for row in table.rows]
        columns.show(
            [_printable(head, console) for head in heads],
            [[_printable(cell, console) for cell in row] for row in rows],
            console,
            right=range(1, len(heads)),
        )
        console.print()
    for line in explanation_text.lines(result):
        console.print(Text(f"- {_printable(line, console)}"))


def render_matrix(overview: Section, console: Console) -> None:
    """Print the overview of several results (`compare.report.matrix.make_overview`)."""
    for table in overview.tables:
        prose = range(len(table.columns)) if table.prose else (0,)
        columns.show(table.columns, table.rows, console, prose=prose)
        console.print()
        console.print(Text(_printable(f"{table.caption} {table.basis}", console)))
        console.print()


def render_summary(results: Sequence[Result], console: Console) -> None:
    """Print one table of several results (`compare.report.compact`), grouped by result."""
    rows = [tuple(_printable(cell, console) for cell in row) for row in compact.group_rows(results)]
    columns.show_groups(compact.GROUPED, rows, console)
    (whole,) = compact.make_section(results).tables
    console.print()
    console.print(Text(_printable(f"{whole.caption} {whole.basis}", console)))


def _print_figures(rows: list[tuple[str, list[str]]], names: list[str], console: Console) -> None:
    """Print tables that fit the console, each with as many contenders as fit side by side."""
    rows = [(_printable(label, console), [_printable(cell, console) for cell in cells]) for label, cells in rows]
    names = [_printable(name, console) for name in names]
    first = max((cell_len(label) for label, _ in rows), default=0)
    widths = [
        max([min(cell_len(name), 24), *(cell_len(cells[index]) for _, cells in rows)])
        for index, name in enumerate(names)
    ]
    start = 0
    while (end := start + 1) <= len(names):
        width = first + columns.GAP + widths[start]
        while end < len(names) and width + columns.GAP + widths[end] <= console.width:
            width += columns.GAP + widths[end]
            end += 1
        if width > console.width:
            columns.stack(names[start], [(label, cells[start]) for label, cells in rows], console)
        else:
            console.print(_table(rows, names, first, widths, range(start, end)))
        console.print()
        start = end


def _table(
    rows: list[tuple[str, list[str]]], names: list[str], first: int, widths: list[int], chosen: Sequence[int]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="")
    table.add_column("", no_wrap=True, min_width=first)
    for index in chosen:
        table.add_column(Text(names[index], overflow="fold"), justify="right", width=widths[index])
    for label, cells in rows:
        table.add_row(Text(label), *(Text(cells[index]) for index in chosen))
    return table


def _printable(text: str, console: Console) -> str:
    indent = text[: len(text) - len(text.lstrip(" "))]
    text = indent + make_plain(text)
    if console.options.ascii_only:
        text = text.replace(DASH, "-").replace("µ", "u").encode("ascii", "replace").decode("ascii")
    return text
