"""`samestep map`."""

import json
from dataclasses import replace

import typer

from compare.base import scratch
from compare.base.errors import make_printable
from compare.base.interface import Refused
from compare.cli.command_line import takes_options
from compare.execution import phases
from compare.settings import plan
from compare.settings.options import Settings


@takes_options("map")
def map(settings: Settings) -> None:
    """Match the layers of your own pair. Print which of torch's variables is which of flax's, as JSON."""
    if settings.request is None:
        raise Refused("samestep map needs a pair: --jax, --torch, --input, --classes")
    with scratch.open_folder() as folder:
        report = phases.match(plan.make(replace(settings, out=folder, timed=False)))
    for trace in report.traces.values():
        for note in trace.notes:
            typer.echo(f"samestep: {make_printable(note)}", err=True)
    for line in report.list_differences():
        typer.echo(f"samestep: {make_printable(line)}", err=True)
    typer.echo(json.dumps(report.matching.to_map(), indent=2))
