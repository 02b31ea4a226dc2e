"""`samestep reproduce`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from compare import conduct, environment, judgement, results, runner, verdicts
from compare.commands import endings, options
from compare.data import store
from compare.interface import Refused
from compare.report import reproduction as report
from compare.reproduction import claims, code, differences, repetition, training

FILE_NAME = "reproduction.json"


def reproduce(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", parser=options.path, help="A result.json, or its folder.", show_default=False),
    ],
    rounds: Annotated[
        int | None, typer.Option(help="Rounds in place of the stored number.", show_default=False)
    ] = None,
    data: options.Data = None,
    deadline: options.Deadline = None,
    trust_code: Annotated[
        bool, typer.Option(code.TRUST, help="The result is of a user's own models: import the code that FILE names.")
    ] = False,
    changed_code: Annotated[
        bool, typer.Option(code.CHANGED, help="Accept that this code is not the one that made the result.")
    ] = False,
    out: options.Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what differs and the claims as JSON alone.")] = False,
) -> None:
    """Run a stored result's exact specification again, and say which of its claims come again.

    Where that is interrupted once timed rounds have begun, this is said of what was measured.
    """
    file = results.named(file)
    stored = results.load_true(file)
    code.check_trust(stored, trusted=trust_code, changed=changed_code)
    seeds = None if verdicts.is_comparison(stored) else repetition.seeds(stored)
    folder = out or endings.default_out()
    if (folder / results.FILE_NAME).resolve() == file.resolve():
        raise Refused(f"--out {folder} would overwrite {file}; allowed: another folder")
    plan = repetition.plan_of(
        stored, out=folder, rounds=rounds, data_folder=data, deadline=deadline, changed_code=changed_code
    )
    console = Console(quiet=as_json)
    hashes: dict[str, str | None] = {"data_sha256": store.sha256(plan.dataset)}
    if not code.is_named(stored):  # whose weights are known when its models have been matched
        hashes["weights_sha256"] = runner.opened(plan).get("weights_sha256")
    before = differences.before_run(stored, environment.describe(), hashes)
    report.render_start(stored, before, console)
    if code.is_named(stored):
        report.render_code(code.lines(stored), changed_code, console)
    result, path, interruption = conduct.as_far_as_it_came(plan, ["samestep", *sys.argv[1:]], seeds=seeds)
    after = differences.after_run(stored, result)
    found = [*claims.judge(stored, result), *training.judge(stored, result)]
    console.print()
    report.render_differences(after, console, "contenders ran with the versions and settings that are stored")
    console.print()
    report.render_claims(found, stored, result, console)
    told = {
        "stored": {key: stored[key] for key in ("id", "created", "command")},
        "result": result["id"],
        "differences": [asdict(each) for each in (*before, *after)],
        "claims": [asdict(each) for each in found],
    }
    results.replace(plan.out / FILE_NAME, told)
    if as_json:
        typer.echo(json.dumps(told, indent=2, allow_nan=False))
    console.print(f"result file: {path}", markup=False, highlight=False, soft_wrap=True)
    if interruption is not None:
        raise interruption
    raise typer.Exit(exit_code(stored, result, found))


def exit_code(stored: dict[str, Any], result: dict[str, Any], found: list[claims.Claim]) -> int:
    """Return 3 where a contender failed here, 1 where a claim did not come again or one of this run failed, else 0."""
    if judgement.contender_failed(result):
        return endings.CONTENDER_FAILED
    refuted = any(claim.outcome == claims.NOT_REPRODUCED for claim in found)
    broken = judgement.claim_failed(result) and not judgement.claim_failed(stored)
    return endings.CLAIM_FAILED if refuted or broken else 0
