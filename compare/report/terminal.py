"""The report that a person reads in a terminal after `samestep compare`: `render`.

Nothing depends on colour, and nothing in a result is taken for markup or sent to the terminal as a control code.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.report import columns, measurements, pair_text, telemetry_text
from compare.report.document import Section
from compare.report.sentences import DASH, agreement_lines, heading, plain, sentence


def render(result: Mapping[str, Any], console: Console, *, brief: bool = False) -> None:
    """Print the terminal report of a valid result object (see `compare.results.result_file`) on the console.

    `brief` leaves out definitions, and the gates of a certificate that did not fail.
    """

    def say(text: str) -> None:
        console.print(Text(_printable(text, console)), soft_wrap=False)

    contenders: Sequence[Mapping[str, Any]] = result["contenders"]
    say(heading(result))
    say("")
    rows = measurements.rows(contenders, result["spec"])
    _print_figures(rows, [each["name"] for each in contenders], console)
    certificate = agreement_lines(result["agreement"])
    if brief and result["agreement"]["status"] != "fail":
        certificate = certificate[:1]
    claims = [*map(sentence, result["comparisons"]), *certificate]
    definitions = [] if brief else list(measurements.definitions(contenders))
    remarks = [
        *pair_text.lines(result),
        *measurements.remarks(contenders),
        *measurements.absent_memory(contenders),
        *telemetry_text.lines(result),
        *telemetry_text.voids(result),
    ]
    for index, part in enumerate(part for part in (remarks, claims, definitions) if part):
        for line in ([""] if index else []) + part:
            say(line)


def render_matrix(overview: Section, console: Console) -> None:
    """Print what `compare.report.matrix.overview` found in several results."""
    for table in overview.tables:
        columns.show(table.columns, table.rows, console, prose=range(len(table.columns)))
        console.print()
        console.print(Text(_printable(f"{table.caption} {table.basis}", console)))
        console.print()


def _print_figures(rows: list[tuple[str, list[str]]], names: list[str], console: Console) -> None:
    """Print tables that each fit the console, with as many contenders side by side as fit."""
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
    text = indent + plain(text)
    if console.options.ascii_only:
        text = text.replace(DASH, "-").replace("µ", "u").encode("ascii", "replace").decode("ascii")
    return text
