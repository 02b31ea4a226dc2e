"""`samestep fit`."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from compare.base import typed_json
from compare.cli import exit_codes
from compare.cli.command_line import takes_options
from compare.execution import execute, progress
from compare.settings.options import HOW, Settings
from compare.studies import fit_report, fit_result, fitting


@takes_options("fit")
def fit(
    settings: Settings,
    as_json: bool,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            help="MiB of memory for the largest batch. Default: all of a GPU's, half of a CPU's free memory.",
            show_default=False,
            rich_help_panel=HOW,
        ),
    ] = None,
) -> None:
    """Find the largest batch that fits into memory.

    Find also the least memory that a batch needs. Write DIR/fit.json.
    """
    task = fitting.make(settings, memory=memory)
    with execute.report_interruption(until="all searches were done, and nothing is kept"), progress.show() as advance:
        searches = fitting.run(task, advance)
    result = fit_result.build(task, searches, ["samestep", *sys.argv[1:]])
    path = fit_result.write(result, task.plan.out)
    if as_json:
        typer.echo(typed_json.to_text(result))
    else:
        fit_report.render(result, Console())
        typer.echo(f"\nresult file: {path}")
    raise typer.Exit(exit_codes.CONTENDER_FAILED if result.has_failure else 0)
