"""What a person reads in a terminal from `samestep reproduce`: what differs, and which claims came again."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.base.untrusted import SHORT
from compare.report import columns
from compare.report.measurements import time_unit
from compare.report.sentences import DASH, heading, printable
from compare.report.telemetry_text import voids
from compare.reproduce.claims import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Claim
from compare.reproduce.differences import Difference
from compare.results import model

_OUTCOMES = (REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE)


def render_differences(differences: Sequence[Difference], console: Console, same: str) -> None:
    """Print what differs as a table; `same` is said where nothing does."""
    if not differences:
        console.print(Text(same))
        return
    rows = [(each.place, _value(each.stored), _value(each.here)) for each in differences]
    columns.show(("what differs", "stored", "here"), rows, console, prose=(0, 1, 2))


def render_start(stored: Mapping[str, Any], differences: Sequence[Difference], console: Console) -> None:
    """Print which run is repeated, and what differs before it begins."""
    console.print(
        Text(printable(f"repeats the run {stored['id']} of {stored['created']}: {heading(model.from_json(stored))}"))
    )
    console.print()
    same = "environment and data" if "pair" in stored["spec"] else "environment, data and initial weights"
    render_differences(differences, console, f"{same} are as they were")


def render_code(lines: Sequence[str], changed: bool, console: Console) -> None:
    """Print which code is imported, and whether another source than the stored one is accepted."""
    console.print(Text("\nimports the code that the file names:"))
    for line in lines:
        console.print(Text(printable(f"  {line}"), overflow="fold"))
    said = "is accepted; what is really imported stands below" if changed else "is refused before anything is trained"
    console.print(Text(f"another source {said}"))


def render_claims(
    claims: Sequence[Claim], stored: Mapping[str, Any], result: Mapping[str, Any], console: Console
) -> None:
    """Print void rounds, every claim with both sides and the reason of its outcome, and how many came again."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for line in voids(model.from_json(result).voided):
        console.print(Text(printable(line)))
    for claim in claims:
        said = f"{claim.subject}: {claim.stored} stored, {claim.here} here; {claim.reason}"
        table.add_row(claim.outcome, Text(printable(said), overflow="fold"))
    console.print(table)
    if times := _step_times(stored, result):
        console.print()
    for line in times:
        console.print(Text(printable(line)))
    counts = Counter(claim.outcome for claim in claims)
    told = [f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES]
    console.print(Text(f"\n{len(claims)} claim{'' if len(claims) == 1 else 's'}: {', '.join(told)}"))


def _step_times(stored: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Say the step times, which no claim is about: they belong to the machine."""
    found: list[str] = []
    now = {each["name"]: _estimate(each) for each in result["contenders"]}
    for each in stored["contenders"]:
        before, here = _estimate(each), now[each["name"]]
        if before and here:
            scale, unit = time_unit([before, here])
            times = f"{before / scale:.4g} {unit} stored, {here / scale:.4g} {unit} here"
            found.append(f"{each['name']}: step time {times} (the machine's, not judged)")
    return found


def _estimate(contender: Mapping[str, Any]) -> float | None:
    return contender["step_seconds"]["estimate"] if contender["step_seconds"] else None


def _value(value: Any) -> str:
    return (
        DASH if value is None else printable(value if isinstance(value, str) and len(value) < 60 else SHORT.repr(value))
    )
