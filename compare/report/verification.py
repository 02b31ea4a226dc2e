"""What a person reads in a terminal from `samestep verify`: every check, and what is wrong where one fails."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.report.sentences import heading, printable
from compare.reproduction.verification import Check

_MOST = 10


def render(result: Mapping[str, Any], checks: Sequence[Check], console: Console) -> None:
    """Print which run it is, every check with its first problems, and how many failed."""
    console.print(Text(printable(f"run {result['id']} of {result['created']}: {heading(result)}")))
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for check in checks:
        table.add_row("pass" if check.held else "FAIL", Text(check.question))
        for problem in check.problems[:_MOST]:
            table.add_row("", Text(f"  {printable(problem)}", overflow="fold"))
        if len(check.problems) > _MOST:
            table.add_row("", Text(f"  and {len(check.problems) - _MOST:,} more"))
    console.print(table)
    failed = sum(not check.held for check in checks)
    console.print()
    console.print(Text(f"{failed} of {len(checks)} checks failed" if failed else f"all of {len(checks)} checks held"))
