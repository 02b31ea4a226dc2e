"""The commands that only print what there is: `samestep workloads` and `samestep env`."""

import json

import typer
from rich.console import Console
from rich.table import Table

from compare import environment
from compare.workloads import WORKLOADS


def workloads() -> None:
    """List what can be trained."""
    table = Table(box=None, pad_edge=False)
    for column in ("workload", "image", "batch", "epochs", "optimizer", "what it is"):
        table.add_column(column)
    for each in WORKLOADS.values():
        image = "x".join(map(str, each.model.image))
        optimizer = f"{each.optimizer.name} {each.optimizer.learning_rate:g}"
        table.add_row(each.name, image, str(each.batch_size), str(each.epochs), optimizer, each.summary)
    Console().print(table)


def env() -> None:
    """Print what a reader needs to repeat a run here: packages, devices, variables, as JSON."""
    typer.echo(json.dumps(environment.describe(), indent=2))
