"""A comparison that `compare` or `agree` has prepared. It is executed on the machines of its run, or only planned."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from compare.cli import exit_codes
from compare.cluster import cluster
from compare.cluster.cluster import Cluster
from compare.execution import execute
from compare.results.model import Result
from compare.settings.plan import Plan

Prepare = Callable[..., "Prepared"]
"""A command before it runs: it takes the command's options, and the machines of the run as `cluster`."""


@dataclass(frozen=True)
class Prepared:
    """A comparison that has not started.

    Attributes:
        plan: the comparison.
        show: shows a result object and names its file.
        seeds: training runs of each contender for a certificate alone; None times the plan's rounds.
        undecided: the option --undecided.
    """

    plan: Plan
    show: Callable[[Result, Path], None]
    seeds: int | None = None
    undecided: str = "pass"


def make_command(prepare: Prepare) -> Callable[..., None]:
    """Return the command that executes what `prepare` prepares, on the machines that a launcher started it on."""

    @functools.wraps(prepare)
    def command(**options: Any) -> None:
        with cluster.join(os.environ) as machines:
            prepared = prepare(**options, cluster=machines)
            result, path = execute.execute(prepared.plan, ["samestep", *sys.argv[1:]], seeds=prepared.seeds)
            prepared.show(result, path)
            raise typer.Exit(exit_codes.exit_code(result, prepared.undecided))

    return command


def make_plan(prepare: Prepare, arguments: Sequence[str], machines: Cluster, context: typer.Context) -> Plan:
    """Return the plan that a command makes of its arguments on `machines`. Start nothing.

    A wrong argument ends the program as in that command, with exit code 2. `context` is the calling command's.
    """

    @functools.wraps(prepare)
    def check(**options: Any) -> Plan:
        return prepare(**options, cluster=machines).plan

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(check)
    command: Any = typer.main.get_command(app)
    with command.make_context(command.name, list(arguments), parent=context.find_root()) as own:
        return command.invoke(own)
