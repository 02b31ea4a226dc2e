"""`samestep diff`."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from compare.base.interface import Refused
from compare.cli import exit_codes
from compare.cli.command_line import takes_options, to_path
from compare.execution import execute
from compare.report import terminal
from compare.reproduce import regression, stored_result
from compare.reproduce import regression_report as report
from compare.results.model import Result
from compare.settings import contenders, plan
from compare.settings.kinds import Fraction
from compare.settings.options import SETTINGS, Settings

_AGAINST = "diff --against REV --torch FILE.py:NAME --input HxWxC --classes N"


@takes_options("diff")
def diff(
    changes: dict[str, Any],
    as_json: bool,
    undecided: str,
    old: Annotated[
        Path | None,
        typer.Argument(
            metavar="OLD", parser=to_path, help="The earlier result.json, its folder, or a bundle.", show_default=False
        ),
    ] = None,
    new: Annotated[
        Path | None,
        typer.Argument(
            metavar="NEW", parser=to_path, help="The later result.json, its folder, or a bundle.", show_default=False
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Instead of two results: time your own model as it is and as this revision of git has it.",
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare even another workload, precision, batch or device.")
    ] = False,
) -> None:
    """Find what became slower or larger between two results, or between two revisions of your own model.

    It compares times and memory. As a regression gate it ends with exit code 1 if something did. With --against both
    revisions are timed in the same rounds on this machine, so the comparison holds on a shared machine.
    """
    option = SETTINGS["fail_above"]
    fail_above = changes.pop("fail_above", option.default_in("diff"))
    option.check(fail_above)
    threshold = Fraction().read(fail_above)
    if against is not None:
        if old is not None:
            raise Refused(f"--against {against} and {old}: allowed: two results, or --against with your own model")
        _diff_revisions(against, changes, threshold, as_json, undecided)
    if changes:
        flags = [SETTINGS[name].flag for name in changes if name not in ("workload", "request")]
        raise Refused(f"{flags[0] if flags else 'a model'} needs --against; allowed: diff OLD NEW, or {_AGAINST}")
    if old is None or new is None:
        raise Refused(f"diff compares two results; allowed: diff OLD NEW, or {_AGAINST}")
    before, after = stored_result.load(old), stored_result.load(new)
    other_work = regression.find_other_work(before, after)
    if other_work and not anyway:
        raise Refused(
            f"{old} and {new} are not of the same work: {'; '.join(other_work)}; allowed with --anyway. To compare two "
            "revisions of your code, --against REV times both on this machine"
        )
    found = regression.find_changes(before, after, threshold)
    failed = any(change.outcome == regression.REGRESSION for change in found)
    is_undecided = any(change.outcome == regression.INCONCLUSIVE for change in found)
    if undecided == "skip":
        found = [change for change in found if change.outcome != regression.INCONCLUSIVE]
    if as_json:
        value = _to_json(before, after, threshold, other_work, found, failed)
        typer.echo(json.dumps(value, indent=2, allow_nan=False))
    else:
        report.render(found, threshold, [f"not the same work: {each}" for each in other_work], Console())
    if failed:
        raise typer.Exit(exit_codes.CLAIM_FAILED)
    raise typer.Exit(exit_codes.UNDECIDED if is_undecided and undecided == "fail" else 0)


def _diff_revisions(
    revision: str, changes: dict[str, Any], threshold: float, as_json: bool, undecided: str
) -> NoReturn:
    """Time a user's own model at a revision and as it is, and end with the exit code of the gate."""
    values: dict[str, Any] = {"energy": False, "fail_above": threshold, **changes}
    settings = Settings(**values)
    sides = contenders.list_sides(plan.find_workload(settings.workload))
    if len(sides) != 1:
        raise Refused(f"--against {revision} needs one model of yours, of torch or jax; allowed: {_AGAINST}")
    settings = replace(settings, contenders=(f"{sides[0]}@{revision}", sides[0]))
    result, path = execute.execute(plan.make(settings), ["samestep", *sys.argv[1:]])
    outcome = _judge_revisions(result, threshold)
    if as_json:
        typer.echo(json.dumps({"outcome": outcome, "fail_above": threshold, "result": str(path)}, indent=2))
    else:
        terminal.render(result, Console(), brief=True)
        typer.echo(f"\n{outcome} at {100 * threshold:g} %: the files as they are against {revision}")
        typer.echo(f"result file: {path}")
    if (code := exit_codes.exit_code(result)) != 0:
        raise typer.Exit(code)
    if outcome == regression.REGRESSION:
        raise typer.Exit(exit_codes.CLAIM_FAILED)
    is_failing = outcome == regression.INCONCLUSIVE and undecided == "fail"
    raise typer.Exit(exit_codes.UNDECIDED if is_failing else 0)


def _judge_revisions(result: Result, threshold: float) -> str:
    """Return the outcome of the files as they are against a revision."""
    (comparison,) = result.comparisons
    ratio = comparison.claimed_ratio
    return regression.INCONCLUSIVE if ratio is None else regression.judge_ratio(ratio, threshold)


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
