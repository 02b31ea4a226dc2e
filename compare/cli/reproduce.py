"""`samestep reproduce`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from compare.base import typed_json
from compare.base.interface import Refused
from compare.cli import exit_codes
from compare.cli.command_line import takes_options, to_path
from compare.execution import execute, phases
from compare.machine import environment
from compare.reproduce import (
    claims,
    differences,
    repetition,
    stored_result,
    training_claims,
    user_code,
)
from compare.reproduce import reproduction_report as report
from compare.results import result_file, verdicts
from compare.results.model import Result
from compare.settings.options import OWN_MODELS
from compare.settings.plan import make_default_out

FILE_NAME = "reproduction.json"


@takes_options("reproduce")
def reproduce(
    changes: dict[str, Any],
    as_json: bool,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", parser=to_path, help="A result.json, its folder, or a bundle.", show_default=False
        ),
    ],
    trust_code: Annotated[
        bool,
        typer.Option(
            user_code.TRUST,
            help="Import the code that FILE names. A result of your own models needs this.",
            rich_help_panel=OWN_MODELS,
        ),
    ] = False,
    changed_code: Annotated[
        bool,
        typer.Option(
            user_code.CHANGED,
            help="Accept that this code is not the code that made the result.",
            rich_help_panel=OWN_MODELS,
        ),
    ] = False,
) -> None:
    """Repeat the run of a stored result. Say which of its claims hold again.

    If you interrupt it after timed rounds have begun, it judges the rounds that are complete.
    """
    file = result_file.find_file(file)
    stored = stored_result.load(file)
    user_code.check_trust(stored, trusted=trust_code, changed=changed_code)
    seeds = None if stored.spec.is_comparison else repetition.read_seeds(stored)
    folder = changes.setdefault("out", make_default_out())
    if (folder / result_file.FILE_NAME).resolve() == file.resolve():
        raise Refused(f"--out {folder} would overwrite {file}; allowed: another folder")
    plan = repetition.make_plan(stored, changes, changed_code=changed_code)
    console = Console(quiet=as_json)
    hashes: dict[str, str | None] = {"data_sha256": plan.dataset.sha256}
    # The weights of a pair are known after its match, and fine-tuned ones after training.
    if not user_code.names_code(stored) and stored.spec.finetune_epochs is None:
        description = phases.describe_model(plan)
        hashes["weights_sha256"] = None if description is None else description.weights_sha256
    before = differences.find_before_run(stored, typed_json.write(environment.describe()), hashes)
    report.render_start(stored, before, console)
    if user_code.names_code(stored):
        report.render_code(user_code.describe(stored), changed_code, console)
    result, target, interruption = execute.execute_until_interrupted(plan, ["samestep", *sys.argv[1:]], seeds=seeds)
    after = differences.find_after_run(stored, result)
    judgements = [*claims.judge(stored, result), *training_claims.judge(stored, result)]
    console.print()
    report.render_differences(after, console, "contenders ran with the versions and settings that are stored")
    console.print()
    report.render_claims(judgements, stored, result, console)
    value = {
        "stored": {"id": stored.id, "created": stored.created, "command": list(stored.command)},
        "result": result.id,
        "differences": [asdict(difference) for difference in (*before, *after)],
        "claims": [asdict(claim) for claim in judgements],
    }
    result_file.replace(plan.out / FILE_NAME, value)
    if as_json:
        typer.echo(json.dumps(value, indent=2, allow_nan=False))
    console.print(f"result file: {target}", markup=False, highlight=False, soft_wrap=True)
    if interruption is not None:
        raise interruption
    raise typer.Exit(exit_code(stored, result, judgements))


def exit_code(stored: Result, result: Result, judgements: list[claims.Claim]) -> int:
    """Return 3 where a contender failed here, 1 where a claim did not come again or one of this run failed, else 0."""
    if verdicts.contender_failed(result):
        return exit_codes.CONTENDER_FAILED
    refuted = any(claim.outcome == claims.NOT_REPRODUCED for claim in judgements)
    broken = verdicts.claim_failed(result) and not verdicts.claim_failed(stored)
    return exit_codes.CLAIM_FAILED if refuted or broken else 0
