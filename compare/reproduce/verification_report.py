"""Print the report of `samestep verify`: every check, its problems, and the parts that were not checked."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.base.errors import make_printable
from compare.report.sentences import make_heading
from compare.reproduce.verification import Check
from compare.results.model import Result

_MOST_LINES = 10
_OPEN = "OPEN"
"""Stands before a check without a problem that could not be made in full."""


def render(result: Result, checks: Sequence[Check], console: Console) -> None:
    """Print the run, every check with its first problems, and how many checks failed."""
    console.print(Text(make_printable(f"run {result.id} of {result.created}: {make_heading(result)}")))
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for check in checks:
        lines = check.problems + check.unchecked
        table.add_row("FAIL" if check.problems else _OPEN if check.unchecked else "pass", Text(check.question))
        for line in lines[:_MOST_LINES]:
            table.add_row("", Text(f"  {make_printable(line)}", overflow="fold"))
        if len(lines) > _MOST_LINES:
            table.add_row("", Text(f"  and {len(lines) - _MOST_LINES:,} more"))
    console.print(table)
    console.print()
    console.print(Text(_conclude(checks)))


def _conclude(checks: Sequence[Check]) -> str:
    failed = sum(bool(check.problems) for check in checks)
    unfinished = sum(bool(check.unchecked) and not check.problems for check in checks)
    if not failed and not unfinished:
        return f"all of {len(checks)} checks held"
    parts = [f"{failed} of {len(checks)} checks failed" if failed else f"none of {len(checks)} checks failed"]
    parts += [f"{unfinished} is {_OPEN} (made in part, see the lines below it)"] if unfinished else []
    return ", ".join(parts)
