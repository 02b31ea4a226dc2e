"""Print tables in a terminal without cutting a figure. If the columns do not fit, the rows are stacked."""

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from compare.report.sentences import make_plain

GAP = 3
"""Letters between columns: one of padding on either side, and the box between."""

_TIGHT = 2
_LEAST = 16  # letters that a column of words keeps, because figures in it are no longer


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console,
    *,
    prose: Collection[int] = (0,),
    right: Collection[int] = (),
) -> None:
    """Print a table. If the console is too narrow, print each row as its first cell with the others below.

    Args:
        columns: the heads.
        rows: one text for each column. Each is passed through `compare.report.sentences.make_plain`.
        console: the terminal.
        prose: numbers of the columns of words, which may be broken into lines. All others are figures.
        right: numbers of the columns that are set flush right.
    """
    plain_rows = [[make_plain(cell) for cell in row] for row in rows]
    fitting = make_table(columns, plain_rows, console.width, prose=prose, right=right)
    if fitting:
        console.print(fitting)
        return
    for title, *cells in plain_rows:
        stack(title, zip(columns[1:], cells, strict=True), console)


def show_groups(heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print rows of figures in groups. A row of one cell is the heading of a group, over the whole width.

    All columns but the first and the last are flush right. If the console is too narrow, the rows are stacked.
    """
    full = [list(row) for row in (heads, *rows) if len(row) > 1]
    widths = [max(cell_len(row[index]) for row in full) for index in range(len(heads))]
    if sum(widths) + _TIGHT * (len(widths) - 1) > console.width:
        for title, *cells in rows:
            stack(title.strip(), zip(heads[1:], cells, strict=False), console)
        return
    last = len(heads) - 1
    for row in (heads, *rows):
        padded = [
            cell if len(row) == 1 else _pad(cell, widths[index], flush_right=0 < index < last)
            for index, cell in enumerate(row)
        ]
        console.print(Text((" " * _TIGHT).join(padded).rstrip(), overflow="fold"))


def _pad(text: str, width: int, *, flush_right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if flush_right else text + space


def make_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    prose: Collection[int] = (0,),
    right: Collection[int] = (),
    tight: bool = False,
) -> Table | None:
    """Return the table of `show` in at most `width` letters, None if a figure would be cut.

    A row may be shorter than the heads. `tight` leaves less room between columns.
    """
    heads = [make_plain(column) for column in columns]
    cells = [[row[index] for row in rows if index < len(row)] for index in range(len(heads))]
    gaps = (_TIGHT if tight else GAP) * (len(heads) - 1)
    widths = _fit_widths(heads, cells, width - gaps, prose)
    if widths is None:
        return None
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=tight, header_style="")
    for index, (head, size) in enumerate(zip(heads, widths, strict=True)):
        justify = "right" if index in right else "left"
        table.add_column(Text(head, overflow="fold"), justify=justify, width=size, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    return table


def stack(title: str, pairs: Iterable[tuple[str, str]], console: Console) -> None:
    """Print a title, and below it each name with its value on a line. A value without a name stands alone.

    A value that does not fit beside its name stands below it. Only words are broken into lines.
    """
    console.print(Text(title, overflow="fold"))
    listed = [(f"  {name}" if name else "", value) for name, value in pairs if value]
    longest = max((cell_len(name) for name, _ in listed), default=0)
    for name, value in listed:
        beside = f"{name}{' ' * (longest - cell_len(name))}  {value}"
        if name and cell_len(beside) <= console.width:
            console.print(Text(beside))
            continue
        if name:
            console.print(Text(name, overflow="fold"))
        _print_below(value, 2 + len(name) - len(name.lstrip()), console)


def _print_below(value: str, indent: int, console: Console) -> None:
    if " " in value:
        console.print(Padding(Text(value, overflow="fold"), (0, 0, 0, indent)))
    else:
        console.print(Text(" " * indent + value), soft_wrap=True)  # wider than the console rather than cut


def _fit_widths(
    heads: Sequence[str], cells: Sequence[Sequence[str]], room: int, prose: Collection[int]
) -> list[int] | None:
    """Return the width of each column, None if `room` is too small. Words are broken only if they must be."""
    wanted = [max(map(cell_len, (head, *texts))) for head, texts in zip(heads, cells, strict=True)]
    widths: list[int] = []
    for index, (head, texts) in enumerate(zip(heads, cells, strict=True)):
        broken = [head, *texts] if index in prose else [head]
        words = max((cell_len(word) for text in broken for word in text.split()), default=0)
        whole = () if index in prose else map(cell_len, texts)
        widths.append(max([min(words, _LEAST), *whole]))
    if (spare := room - sum(widths)) < 0:
        return None
    while spare and (growing := [index for index, size in enumerate(widths) if size < wanted[index]]):
        widths[min(growing, key=lambda index: widths[index])] += 1
        spare -= 1
    return widths
