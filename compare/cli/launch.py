"""`samestep launch`."""

import functools
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from compare.base import files, output
from compare.base.interface import Refused
from compare.cli import agree, compare
from compare.cli.command_line import to_path
from compare.cli.prepared_run import Prepare, make_plan
from compare.cluster import slurm
from compare.cluster.cluster import PlannedCluster
from compare.cluster.slurm import Job
from compare.settings.plan import Plan, make_default_out

COMMANDS: Mapping[str, Prepare] = {"compare": compare.compare, "agree": agree.agree}
"""The commands that can use several machines."""


def launch(
    context: typer.Context,
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="compare or agree with its arguments, after --. Its --devices counts the devices of all nodes.",
            metavar="-- COMMAND ARGUMENTS...",
        ),
    ],
    on_slurm: Annotated[
        bool, typer.Option("--slurm", help="Run as a batch job of Slurm. No other launcher is known yet.")
    ] = False,
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of machines.")] = 2,
    gpus_per_node: Annotated[
        int, typer.Option(metavar="N", help="GPUs to request on each machine; 0 requests none.")
    ] = 0,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(help="Option for sbatch, such as --partition=gpu. Repeatable.", metavar="OPTION"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script. Write and submit nothing.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=to_path,
            metavar="DIR",
            help="Folder for the script and the log, and for the result unless the command names one.",
        ),
    ] = None,
) -> None:
    """Run one comparison on several machines. Write DIR/samestep.sbatch and submit it.

    DIR is --out, or else the command's own --out. Wrong arguments of the command are reported before anything is
    written. Only the nodes read the folder of --data.
    """
    if not on_slurm:
        raise Refused("samestep launch needs to know the launcher; allowed: --slurm")
    job = slurm.check(Job(nodes, gpus_per_node, sbatch or [], Path.cwd()))
    name, *rest = arguments
    if name not in COMMANDS:
        raise Refused(
            f"samestep launch {name} is not allowed; allowed: {' or '.join(COMMANDS)} and its arguments, after --"
        )
    default = (out or make_default_out()).absolute()
    unless_named = ["--out", str(default), *rest]  # the later of two wins
    plan = _plan_on_nodes(COMMANDS[name], unless_named, job, context)
    folder = default if out else plan.out.absolute()
    script = job.script([name, *(unless_named if plan.out == default else rest)], folder)
    if dry_run:
        there = output.is_there(folder)
        typer.echo(script, nl=False)
        if not there:
            command = f"mkdir -p {shlex.quote(str(folder))}"
            typer.echo(f"samestep: Slurm makes no folder for its log. Before you submit this, run: {command}", err=True)
        return
    output.make_folder(folder)
    file = folder / "samestep.sbatch"
    files.write({file: script.encode()})
    typer.echo(f"{slurm.submit(file)}: {file}, output in {folder}/slurm-JOB.log")


def _plan_on_nodes(prepare: Prepare, arguments: Sequence[str], job: Job, context: typer.Context) -> Plan:
    """Return the plan that a command makes on a job's nodes. The nodes need not be like this machine.

    Raises:
        Refused: for wrong arguments of the command. Device `auto` is tried with GPUs, and without unless the job
            requests some.
    """
    on = functools.partial(PlannedCluster, job.nodes, job.gpus)
    try:
        return make_plan(prepare, arguments, on("cuda"), context)
    except Refused:
        if not job.gpus:
            with suppress(Refused):
                return make_plan(prepare, arguments, on("cpu"), context)
        raise
