"""Tables of a terminal in which no figure is ever cut: where the columns do not fit, the rows are stacked."""

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from compare.report.sentences import plain

GAP = 3
"""Between columns: a padding of one on either side, and the box in between."""

_TIGHT = 2
_LEAST = 16  # letters that a column of words keeps: no figure in them is longer


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console,
    *,
    prose: Collection[int] = (0,),
    right: Collection[int] = (),
) -> None:
    """Print a table, or, where the console is too narrow, each row as its first cell with the others below.

    Args:
        columns: the heads.
        rows: a text a column; each is made `compare.report.sentences.plain`.
        console: where to.
        prose: numbers of the columns of words, which may be broken into lines; all others are figures.
        right: numbers of the columns that are set flush right.
    """
    whole = [[plain(cell) for cell in row] for row in rows]
    made = table(columns, whole, console.width, prose=prose, right=right)
    if made:
        console.print(made)
        return
    for title, *cells in whole:
        stack(title, zip(columns[1:], cells, strict=True), console)


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    prose: Collection[int] = (0,),
    right: Collection[int] = (),
    tight: bool = False,
) -> Table | None:
    """Return a table at most that wide as `show` prints it; None where a figure would be cut.

    A row may be shorter than the heads. `tight` leaves less room between columns.
    """
    heads = [plain(column) for column in columns]
    cells = [[row[index] for row in rows if index < len(row)] for index in range(len(heads))]
    gaps = (_TIGHT if tight else GAP) * (len(heads) - 1)
    widths = _widths(heads, cells, width - gaps, prose)
    if widths is None:
        return None
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=tight, header_style="")
    for index, (head, size) in enumerate(zip(heads, widths, strict=True)):
        justify = "right" if index in right else "left"
        made.add_column(Text(head, overflow="fold"), justify=justify, width=size, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, overflow="fold") for cell in row))
    return made


def stack(title: str, pairs: Iterable[tuple[str, str]], console: Console) -> None:
    """Print a title, and below it a name and its value a line; a value without a name stands alone.

    A value that does not fit beside its name stands below it, whole: only words are broken into lines.
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


def _widths(
    heads: Sequence[str], cells: Sequence[Sequence[str]], room: int, prose: Collection[int]
) -> list[int] | None:
    """Return a width a column, words broken as far as `room` asks for; None where that is not enough."""
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
