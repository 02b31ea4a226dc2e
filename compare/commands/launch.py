"""`samestep launch`."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from compare import files, plan
from compare.commands import endings, options
from compare.interface import DEVICES, Refused
from compare.machines import slurm, splitting
from compare.machines.slurm import Job
from compare.tuning import contenders, tunings
from compare.tuning.contenders import Contender
from compare.tuning.knobs import Value
from compare.tuning.naming import DEFAULT_CONTENDERS


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
    job = slurm.checked(Job(given, nodes, gpus_per_node, sbatch or [], folder / "slurm-%j.log", Path.cwd()))
    asked = _read(context, given)
    slurm.check_devices(job, asked["devices"], asked["device"])
    _check_ways(job, asked)
    _check_workload(asked)
    if dry_run:
        typer.echo(job.script(), nl=False)
        return
    plan.writable(folder)
    script = folder / "samestep.sbatch"
    files.write({script: job.script().encode()})
    typer.echo(f"{slurm.submitted(script)}: {script}, output in {folder}/slurm-JOB.log")


def _read(context: typer.Context, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return what samestep reads in a command's arguments, by parameter; the command is not run.

    What it cannot read ends the program as it would on the nodes, with exit code 2.
    """
    root = context.find_root()
    name, *rest = arguments
    command = cast(Any, root.command).get_command(root, name)
    return command.make_context(name, rest, parent=root).params


def _check_ways(job: Job, asked: Mapping[str, Any]) -> None:
    """Check that a contender uses several devices, as one must on several machines.

    Raises:
        Refused: none does, or a contender is refused on whatever devices the nodes may have.
    """
    device = asked["device"]
    if device not in DEVICES:
        raise Refused(f"unknown device {device!r}; allowed: {', '.join(DEVICES)}")
    kinds = [device] if device != "auto" else ["cuda"] if job.gpus else ["cuda", "cpu"]
    texts = contenders.tuned(asked["contenders"] or DEFAULT_CONTENDERS, asked["tuning"], asked["knobs"])
    chosen = contenders.parse(contenders.spread(texts, asked["parallel"]))
    workload = asked["workload"] or ""
    ways = {each.name: _way(each, kinds, workload) for each in chosen}
    splitting.check_ways(ways, asked["devices"], asked["batch_norm"])
    splitting.check_step(ways, asked["accumulate"], own=asked["jax"] is not None or asked["torch"] is not None)


def _check_workload(asked: Mapping[str, Any]) -> None:
    """Check what is trained, whatever devices the nodes may have.

    Raises:
        Refused: no such workload or precision, or a batch that has no equal parts.
    """
    named = {name: asked[name] for name in ("workload", "precision") if asked[name] is not None}
    size, usual = asked["batch_size"], plan.trained(**named).batch_size
    splitting.check_batch(usual if size is None else size, asked["devices"])


def _way(contender: Contender, kinds: Sequence[str], workload: str) -> Value:
    for kind in kinds[:-1]:
        with contextlib.suppress(Refused):
            return tunings.resolve(contender.backend, contender.tuning, kind, workload)["parallel"]
    return tunings.resolve(contender.backend, contender.tuning, kinds[-1], workload)["parallel"]
