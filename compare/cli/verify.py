"""`samestep verify`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compare.base import untrusted
from compare.base.interface import Refused
from compare.cli import exit_codes
from compare.cli.command_line import takes_options, to_path
from compare.reproduce import archive, verification
from compare.reproduce import verification_report as report


@takes_options("verify")
def verify(
    as_json: bool,
    file: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE", parser=to_path, help="A zip file of samestep bundle.", show_default=False),
    ],
) -> None:
    """Check a bundle offline, from its raw samples.

    It checks hashes and the schema, and computes every table and verdict again.
    """
    try:
        result, checks = verification.verify(untrusted.read(file, archive.TOTAL_LIMIT, "a bundle"))
    except Refused as error:
        raise Refused(f"{file}: {error}") from None
    if as_json:
        report_object = {"id": result["id"], "checks": [asdict(check) | {"held": check.held} for check in checks]}
        typer.echo(json.dumps(report_object, indent=2))
    else:
        report.render(result, checks, Console())
    raise typer.Exit(exit_codes.CLAIM_FAILED if any(check.problems for check in checks) else 0)
