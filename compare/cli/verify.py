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
from compare.results import result_file


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
    file = result_file.find_file(file)
    try:
        verified = [verification.verify(data) for data in stored_result.split(stored_result.read(file))]
    except Refused as error:
        raise Refused(f"{file}: {error}") from None
    if as_json:
        values = [
            {"id": result.id, "checks": [asdict(check) | {"held": check.held} for check in checks]}
            for result, checks in verified
        ]
        typer.echo(json.dumps(values[0] if len(values) == 1 else values, indent=2))
    else:
        for result, checks in verified:
            report.render(result, checks, Console())
    has_problem = any(check.problems for _, checks in verified for check in checks)
    raise typer.Exit(exit_codes.CLAIM_FAILED if has_problem else 0)
