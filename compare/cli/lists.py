"""Commands that only print lists: `samestep workloads`, `samestep knobs` and `samestep env`."""

import json
from collections.abc import Mapping

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.base import installed
from compare.base.knobs import KNOBS, Value
from compare.base.workloads import WORKLOADS
from compare.machine import environment
from compare.settings.tunings import GIVEN, INFERRED, INFERRED_FOR, SYNCHRONISED, TUNED, TUNINGS

_LEAST_WIDTH = 76
"""A narrower table would cut names. A narrower terminal breaks lines itself."""


def workloads() -> None:
    """List what can be trained."""
    table = Table(box=None, pad_edge=False)
    for column in ("workload", "image", "batch", "epochs", "optimizer"):
        table.add_column(column, no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for workload in WORKLOADS.values():
        image = "x".join(map(str, workload.model.image))
        rule = "adamw" if workload.optimizer.decoupled else workload.optimizer.name
        optimizer = f"{rule} {workload.optimizer.learning_rate:g}"
        table.add_row(workload.name, image, str(workload.batch_size), str(workload.epochs), optimizer, workload.summary)
    for name, distribution in installed.names().items():
        table.add_row(Text(name), "", "", "", "", Text(f"installed with {distribution}"))
    console = Console()
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table)


def knobs() -> None:
    """List the knobs, and the tunings made of them."""
    for knob in KNOBS.values():
        typer.echo(f"{knob.name}: {knob.summary}")
        for side in ("jax", "torch"):
            typer.echo(f"  {side:5}  {knob.describe(side)}")
    for name, meaning in TUNINGS.items():
        typer.echo(f"\n{name}: {meaning}")
        for (backend, tuning), settings in GIVEN.items():
            if tuning == name:
                typer.echo(f"  {backend:5}  {_spell(settings)}")
    for (backend, device, workload), (settings, evidence) in TUNED.items():
        measured = f"measured: {evidence}" if evidence else "not measured"
        typer.echo(f"  {backend:5}  {device}, {workload}: {_spell(settings)} ({measured})")
    for (backend, device, workload), (settings, evidence) in SYNCHRONISED.items():
        where = f"{device}, {workload} over devices that synchronise batch norm, besides, unless knobs exclude it"
        typer.echo(f"  {backend:5}  {where}: {_spell(settings)} (measured: {evidence})")
    typer.echo("\nwith --task infer")
    for (tuning, backend, device), settings in INFERRED.items():
        typer.echo(f"  {backend:5}  {tuning}, {device}: {_spell(settings)}")
    for (backend, device, workload), settings in INFERRED_FOR.items():
        typer.echo(f"  {backend:5}  tuned, {device}, {workload}: {_spell(settings)}")


def _spell(settings: Mapping[str, Value]) -> str:
    named = [name if value is True else f"{name}={value}" for name, value in settings.items()]
    return ", ".join(named) or "no knob"


def env() -> None:
    """Print this machine's packages, devices and variables as JSON."""
    typer.echo(json.dumps(environment.describe(), indent=2))
