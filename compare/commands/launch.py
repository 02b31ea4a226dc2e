"""`samestep launch`."""

from pathlib import Path
from typing import Annotated

import typer

from compare import files, plan
from compare.commands import endings, options
from compare.interface import Refused
from compare.machines import slurm


def launch(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="compare or agree with its arguments, after --; --devices is their total over all nodes.",
            metavar="-- COMMAND ARGUMENTS ...",
        ),
    ],
    on_slurm: Annotated[bool, typer.Option("--slurm", help="As a batch job of Slurm's.")] = False,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 2,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs that are asked for on each; 0: none.")] = 0,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(help="One more option of sbatch, as --partition=gpu; may be repeated.", metavar="OPTION"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; write and submit nothing.")] = False,
    out: options.Out = None,
) -> None:
    """Run one comparison over several machines: write DIR/samestep.sbatch and submit it.

    The result file goes to DIR as well, unless the command says --out.
    """
    if not on_slurm:
        raise Refused("samestep launch needs to know the launcher; allowed: --slurm")
    folder = (out or endings.default_out()).absolute()
    named = any(each.partition("=")[0] == "--out" for each in arguments)
    given = arguments if named else [*arguments, "--out", str(folder)]
    job = slurm.checked(slurm.Job(given, nodes, gpus_per_node, sbatch or [], folder / "slurm-%j.log", Path.cwd()))
    if dry_run:
        typer.echo(job.script(), nl=False)
        return
    plan.writable(folder)
    script = folder / "samestep.sbatch"
    files.write({script: job.script().encode()})
    typer.echo(f"{slurm.submitted(script)}: {script}, output in {folder}/slurm-JOB.log")
