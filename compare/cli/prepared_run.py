"""A comparison that `compare` or `agree` has prepared: carried out on the machines of its run, or only checked."""

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
from compare.settings.plan import Plan

Prepare = Callable[..., "Prepared"]
"""Prepares a comparison: takes the options of a command, and the machines of the run as `cluster`."""


@dataclass(frozen=True)
class Prepared:
    """A comparison of which nothing has started.

    Attributes:
        plan: what will be done.
        tell: shows a result object and names its file.
        seeds: training runs per contender, where nothing is timed (None: the plan's rounds are).
    """

    plan: Plan
    tell: Callable[[dict[str, Any], Path], None]
    seeds: int | None = None


def carried_out(prepare: Prepare) -> Callable[..., None]:
    """Return the command that carries out what `prepare` prepares, on the machines that a launcher started it on."""

    @functools.wraps(prepare)
    def command(**given: Any) -> None:
        with cluster.join(os.environ) as machines:
            prepared = prepare(**given, cluster=machines)
            result, path = execute.execute(prepared.plan, ["samestep", *sys.argv[1:]], seeds=prepared.seeds)
            prepared.tell(result, path)
            raise typer.Exit(exit_codes.exit_code(result))

    return command


def planned(prepare: Prepare, arguments: Sequence[str], machines: Cluster, context: typer.Context) -> Plan:
    """Return the plan that a command's arguments make on machines; nothing is started. `context` is another command's.

    What the command would refuse ends the program as it would there, with exit code 2.
    """

    @functools.wraps(prepare)
    def checked(**given: Any) -> Plan:
        return prepare(**given, cluster=machines).plan

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(checked)
    command: Any = typer.main.get_command(app)
    with command.make_context(command.name, list(arguments), parent=context.find_root()) as own:
        return command.invoke(own)
