"""`samestep compare`."""

import json
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from compare.cli.command_line import takes_options
from compare.cli.prepared_run import Prepared
from compare.cluster.cluster import Cluster
from compare.report import terminal
from compare.results import model
from compare.results.model import Result
from compare.settings import plan
from compare.settings.options import Settings


@takes_options("compare")
def compare(settings: Settings, as_json: bool, undecided: str, cluster: Cluster | None = None) -> Prepared:
    """Train, certify and time contenders.

    Write DIR/result.json.
    """

    def show(result: Result, path: Path) -> None:
        if as_json:
            typer.echo(json.dumps(model.to_json(result), indent=2, allow_nan=False))
        else:
            if undecided == "skip":
                decided = tuple(each for each in result.comparisons if each.verdict != "INCONCLUSIVE")
                result = replace(result, comparisons=decided)
            terminal.render(result, Console())
            typer.echo(f"\nresult file: {path}")

    return Prepared(plan.make(settings, cluster=cluster), show, undecided=undecided)
