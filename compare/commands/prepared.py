"""A comparison that `compare` or `agree` has prepared: carried out on the machines of its run."""

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from compare import conduct
from compare.commands import endings
from compare.machines import fleet
from compare.plan import Plan

Prepare = Callable[..., "Prepared"]
"""Prepares a comparison: takes the options of a command, and the machines of the run as `fleet`."""


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
        with fleet.joined(os.environ) as machines:
            prepared = prepare(**given, fleet=machines)
            result, path = conduct.carried_out(prepared.plan, ["samestep", *sys.argv[1:]], seeds=prepared.seeds)
            prepared.tell(result, path)
            raise typer.Exit(endings.exit_code(result))

    return command
