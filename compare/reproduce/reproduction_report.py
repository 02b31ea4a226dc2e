"""Print the report of `samestep reproduce`: the differences, and the claims that were reproduced."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.base.errors import make_printable
from compare.base.typed_json import Json
from compare.base.untrusted import SHORT
from compare.report import columns
from compare.report.measurements import time_unit
from compare.report.sentences import DASH, count_noun, make_heading
from compare.report.telemetry_text import list_void_rounds
from compare.reproduce.claims import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Claim
from compare.reproduce.differences import Difference
from compare.results.model import Contender, Result

_OUTCOMES = (REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE)
_LONGEST_VALUE = 60


def render_differences(differences: Sequence[Difference], console: Console, no_difference: str) -> None:
    """Print the differences as a table, or `no_difference` without any."""
    if not differences:
        console.print(Text(no_difference))
        return
    rows = [(each.place, _format(each.stored), _format(each.here)) for each in differences]
    columns.show(("what differs", "stored", "here"), rows, console, prose=(0, 1, 2))


def render_start(stored: Result, differences: Sequence[Difference], console: Console) -> None:
    """Print which run is repeated, and the differences that are known before it begins."""
    console.print(Text(make_printable(f"repeats the run {stored.id} of {stored.created}: {make_heading(stored)}")))
    console.print()
    compared = "environment and data" if stored.spec.pair else "environment, data and initial weights"
    render_differences(differences, console, f"{compared} are as they were")


def render_code(lines: Sequence[str], changed: bool, console: Console) -> None:
    """Print which code is imported, and whether a source that differs from the stored one is accepted."""
    console.print(Text("\nimports the code that the file names:"))
    for line in lines:
        console.print(Text(make_printable(f"  {line}"), overflow="fold"))
    if changed:
        console.print(Text("another source is accepted; the one that is imported stands below"))
    else:
        console.print(Text("another source is refused before anything is trained"))


def render_claims(claims: Sequence[Claim], stored: Result, result: Result, console: Console) -> None:
    """Print void rounds, every claim with both sides and the reason of its outcome, and how many were reproduced."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for line in list_void_rounds(result.voided):
        console.print(Text(make_printable(line)))
    for claim in claims:
        text = f"{claim.subject}: {claim.stored} stored, {claim.here} here; {claim.reason}"
        table.add_row(claim.outcome, Text(make_printable(text), overflow="fold"))
    console.print(table)
    if times := _step_times(stored, result):
        console.print()
    for line in times:
        console.print(Text(make_printable(line)))
    counts = Counter(claim.outcome for claim in claims)
    outcomes = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES)
    console.print(Text(f"\n{count_noun(len(claims), 'claim')}: {outcomes}"))


def _step_times(stored: Result, result: Result) -> list[str]:
    """Return lines with the step times. No claim is about them, because they belong to the machine."""
    lines: list[str] = []
    here = {contender.name: _estimate(contender) for contender in result.contenders}
    for contender in stored.contenders:
        before, after = _estimate(contender), here[contender.name]
        if before and after:
            scale, unit = time_unit([before, after])
            times = f"{before / scale:.4g} {unit} stored, {after / scale:.4g} {unit} here"
            lines.append(f"{contender.name}: step time {times} (the machine's, not judged)")
    return lines


def _estimate(contender: Contender) -> float | None:
    return contender.step_seconds.estimate if contender.step_seconds else None


def _format(value: Json) -> str:
    if value is None:
        return DASH
    return make_printable(value if isinstance(value, str) and len(value) < _LONGEST_VALUE else SHORT.repr(value))
