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
from compare.cli.prepared_run import Prepare, planned
from compare.cluster import slurm
from compare.cluster.nodes import PlannedCluster
from compare.cluster.slurm import Job
from compare.settings.plan import Plan, default_out

COMMANDS: Mapping[str, Prepare] = {"compare": compare.compare, "agree": agree.agree}
"""The commands that train over several machines."""


def launch(
    context: typer.Context,
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="compare or agree with its arguments, after --; --devices is their total over all nodes.",
            metavar="-- COMMAND ARGUMENTS ...",
        ),
    ],
    on_slurm: Annotated[bool, typer.Option("--slurm", help="As a batch job of Slurm's.")] = False,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 2,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs that are asked for on each; 0: not known here.")] = 0,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(help="One more option of sbatch, as --partition=gpu; may be repeated.", metavar="OPTION"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; write and submit nothing.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=to_path,
            metavar="DIR",
            help="Folder for the script and the log, and for the result where the command names none.",
        ),
    ] = None,
) -> None:
    """Run one comparison over several machines: write DIR/samestep.sbatch and submit it.

    DIR, for the script, the job's log and the result, is the command's --out where only that is given. What the
    command would refuse is refused before anything is written; what lies in --data is left to the nodes.
    """
    if not on_slurm:
        raise Refused("samestep launch needs to know the launcher; allowed: --slurm")
    job = slurm.check(Job(nodes, gpus_per_node, sbatch or [], Path.cwd()))
    name, *rest = arguments
    if name not in COMMANDS:
        raise Refused(
            f"samestep launch {name} is not allowed; allowed: {' or '.join(COMMANDS)} and its arguments, after --"
        )
    default = (out or default_out()).absolute()
    unless_named = ["--out", str(default), *rest]  # of two, the later holds
    made = _planned(COMMANDS[name], unless_named, job, context)
    folder = default if out else made.out.absolute()
    script = job.script([name, *(unless_named if made.out == default else rest)], folder)
    if dry_run:
        there = output.is_there(folder)
        typer.echo(script, nl=False)
        if not there:
            made_by = f"mkdir -p {shlex.quote(str(folder))}"
            typer.echo(f"samestep: Slurm makes no folder for its log; before this is submitted: {made_by}", err=True)
        return
    output.writable(folder)
    file = folder / "samestep.sbatch"
    files.write({file: script.encode()})
    typer.echo(f"{slurm.submit(file)}: {file}, output in {folder}/slurm-JOB.log")


def _planned(prepare: Prepare, arguments: Sequence[str], job: Job, context: typer.Context) -> Plan:
    """Return the plan that a command makes on a job's nodes, as far as they are known here.

    Raises:
        Refused: what the command would refuse; on `auto`, both with GPUs and, unless the job asks for them, without.
    """
    on = functools.partial(PlannedCluster, job.nodes, job.gpus)
    try:
        return planned(prepare, arguments, on("cuda"), context)
    except Refused:
        if not job.gpus:
            with suppress(Refused):
                return planned(prepare, arguments, on("cpu"), context)
        raise
