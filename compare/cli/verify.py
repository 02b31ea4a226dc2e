"""`samestep verify`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compare.base.interface import Refused
from compare.cli import exit_codes
from compare.cli.command_line import takes_options, to_path
from compare.reproduce import stored_result, verification
from compare.reproduce import verification_report as report


@takes_options("verify")
def verify(
    as_json: bool,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE", parser=to_path, help="A bundle, or a result.json, or its folder.", show_default=False
        ),
    ],
) -> None:
    """Check a bundle or a result offline: hashes, schema, and every table and verdict from the raw samples."""
    try:
        result, checks = verification.verify(stored_result.read(file))
    except Refused as error:
        raise Refused(f"{file}: {error}") from None
    if as_json:
        value = {"id": result.id, "checks": [asdict(check) | {"held": check.held} for check in checks]}
        typer.echo(json.dumps(value, indent=2))
    else:
        report.render(result, checks, Console())
    raise typer.Exit(exit_codes.CLAIM_FAILED if any(check.problems for check in checks) else 0)
