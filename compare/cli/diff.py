"""`samestep diff`."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from compare.base.interface import Refused
from compare.base.untrusted import SHORT
from compare.cli import exit_codes
from compare.cli.command_line import takes_options, to_path
from compare.reproduce import regression, stored_result
from compare.reproduce import regression_report as report
from compare.results.model import Result


@takes_options("diff")
def diff(
    as_json: bool,
    undecided: str,
    old: Annotated[
        Path,
        typer.Argument(
            metavar="OLD", parser=to_path, help="The earlier result.json, its folder, or a bundle.", show_default=False
        ),
    ],
    new: Annotated[
        Path,
        typer.Argument(
            metavar="NEW", parser=to_path, help="The later result.json, its folder, or a bundle.", show_default=False
        ),
    ],
    fail_above: Annotated[
        str, typer.Option(metavar="3%|0.03", help="Fail above this slowdown, or this growth of memory.")
    ] = "3%",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare even another workload, precision, batch or device.")
    ] = False,
) -> None:
    """Find what became slower or larger between two results.

    It compares times and memory. As a regression gate it ends with exit code 1 if something did.
    """
    threshold = parse_fraction(fail_above)
    before, after = stored_result.load(old), stored_result.load(new)
    other_work = regression.find_other_work(before, after)
    if other_work and not anyway:
        raise Refused(f"{old} and {new} are not of the same work: {'; '.join(other_work)}; allowed with --anyway")
    changes = regression.find_changes(before, after, threshold)
    failed = any(change.outcome == regression.REGRESSION for change in changes)
    is_undecided = any(change.outcome == regression.INCONCLUSIVE for change in changes)
    if undecided == "skip":
        changes = [change for change in changes if change.outcome != regression.INCONCLUSIVE]
    if as_json:
        value = _to_json(before, after, threshold, other_work, changes, failed)
        typer.echo(json.dumps(value, indent=2, allow_nan=False))
    else:
        report.render(changes, threshold, [f"not the same work: {each}" for each in other_work], Console())
    if failed:
        raise typer.Exit(exit_codes.CLAIM_FAILED)
    raise typer.Exit(exit_codes.UNDECIDED if is_undecided and undecided == "fail" else 0)


def parse_fraction(text: str) -> float:
    """Return the threshold that a user writes: `3%` and `0.03` are the same.

    Raises:
        Refused: for what is neither, and for a number of 1 or more without a percent sign, which is hardly meant.
    """
    match = re.fullmatch(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9}) ?(?P<percent>%?)", text.strip())
    value = float(match["number"]) / (100 if match["percent"] else 1) if match else 0.0
    if match is None or (value >= 1 and not match["percent"]):
        raise Refused(f"--fail-above {SHORT.repr(text)} is not allowed; allowed: 3%, or a part below 1, as 0.03")
    return value


def _to_json(
    before: Result,
    after: Result,
    threshold: float,
    other_work: list[str],
    changes: list[regression.Change],
    failed: bool,
) -> dict[str, Any]:
    return {
        "old": {"id": before.id, "created": before.created},
        "new": {"id": after.id, "created": after.created},
        "fail_above": threshold,
        "unlike": other_work,
        "changes": [asdict(change) for change in changes],
        "regression": failed,
    }
