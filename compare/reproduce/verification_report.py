"""What a person reads in a terminal from `samestep verify`: every check, what is wrong, and what was not checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.report.sentences import heading, printable
from compare.reproduce.verification import Check
from compare.results import model

_MOST = 10


def render(result: Mapping[str, Any], checks: Sequence[Check], console: Console) -> None:
    """Print which run it is, every check with its first problems, and how many failed."""
    console.print(Text(printable(f"run {result['id']} of {result['created']}: {heading(model.from_json(result))}")))
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for check in checks:
        said = check.problems + check.unchecked
        table.add_row("FAIL" if check.problems else "OPEN" if check.unchecked else "pass", Text(check.question))
        for line in said[:_MOST]:
            table.add_row("", Text(f"  {printable(line)}", overflow="fold"))
        if len(said) > _MOST:
            table.add_row("", Text(f"  and {len(said) - _MOST:,} more"))
    console.print(table)
    console.print()
    console.print(Text(_summary(checks)))


def _summary(checks: Sequence[Check]) -> str:
    failed = sum(bool(check.problems) for check in checks)
    left = sum(not check.problems and not check.held for check in checks)
    told = [f"{failed} of {len(checks)} checks failed"] if failed else []
    told += [f"{left} of {len(checks)} could not be made in full"] if left else []
    return ", ".join(told) or f"all of {len(checks)} checks held"
