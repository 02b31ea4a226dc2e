"""`samestep agree`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compare.base import files
from compare.cli.command_line import takes_options
from compare.cli.prepared_run import Prepared
from compare.cluster.cluster import Cluster
from compare.execution import execute
from compare.report import certificate_text, figures
from compare.report.plots import loss_plot
from compare.report.plots.canvas import Picture
from compare.results import model
from compare.results.model import Result
from compare.settings import plan
from compare.settings.options import OUTPUT, Settings


@takes_options("agree")
def agree(
    settings: Settings,
    as_json: bool,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="List every tensor, in the order of execution.", rich_help_panel=OUTPUT)
    ] = False,
    cluster: Cluster | None = None,
) -> Prepared:
    """Prove that contenders compute the same thing. Write DIR/result.json and trajectory.svg.

    Nothing is timed. All gates are checked except `update`, which belongs to the batch that `compare` times.
    """
    chosen = plan.make(plan.reduce_to_certificate(settings), cluster=cluster)

    def show(result: Result, path: Path) -> None:
        if result.agreement.trajectory and isinstance(curves := loss_plot.make_picture(result), Picture):
            files.write({chosen.out / execute.PICTURE: figures.draw(curves, "svg")})
        if as_json:
            typer.echo(json.dumps(model.to_json(result), indent=2, allow_nan=False))
        else:
            certificate_text.render(result, Console(), verbose=verbose)
            typer.echo(f"result file: {path}")

    return Prepared(chosen, show, settings.seeds)
