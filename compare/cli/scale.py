"""`samestep scale`."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from compare.base import files
from compare.base.interruptions import HeldSignals
from compare.cli import exit_codes, options
from compare.execution import execute
from compare.report import figures
from compare.report.plots.canvas import Picture
from compare.settings.contenders import spread, tuned
from compare.settings.naming import DEFAULT_CONTENDERS
from compare.studies import scaling, scaling_plot, scaling_report, scaling_result


def scale(
    contenders: options.Contenders = None,
    devices: options.DeviceCounts = "1,2",
    strong: Annotated[
        bool, typer.Option("--strong", help="The same batch over all devices at each number, in place of one each.")
    ] = False,
    parallel: options.Parallel = None,
    tuning: options.Tuning = None,
    knobs: options.Knobs = None,
    workload: options.WorkloadName = "digits-cnn",
    batch_size: Annotated[
        int | None, typer.Option(help="Images per step of each device, with --strong of all. Default: the workload's.")
    ] = None,
    batch_norm: options.BatchNorm = "sync",
    precision: options.Precision = "float32",
    device: options.Device = "auto",
    rounds: options.Rounds = None,
    quick: Annotated[bool, typer.Option("--quick", help="5 rounds.")] = False,
    paper: options.Paper = False,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    data: options.Data = None,
    images: options.Images = None,
    skip_cold_compile: options.SkipColdCompile = False,
    search_anew: options.SearchAnew = False,
    deterministic: options.Deterministic = False,
    deadline: options.Deadline = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Compare contenders on more and more devices, and say how well each uses them; write DIR/result.json, scaling.svg.

    Weak scaling: every device has --batch-size images of a step. With --strong, all devices together have. Contenders
    that do not say how they split a batch take ddp (torch) and sharded (jax). DIR/devices-N has each whole comparison.
    """
    folder, command = out or exit_codes.default_out(), ["samestep", *sys.argv[1:]]
    task = scaling.make(
        spread(tuned(contenders or DEFAULT_CONTENDERS, tuning, knobs), parallel, scaling.WAYS),
        scaling.counts(devices),
        out=folder,
        strong=strong,
        workload=workload,
        batch_size=batch_size,
        precision=precision,
        device=device,
        data_folder=data,
        images=images,
        batch_norm=batch_norm,
        rounds=options.rounds_asked(rounds, quick, paper),
        epochs=epochs,
        seed=seed,
        deterministic=deterministic,
        cold_compile=not skip_cold_compile,
        search_anew=search_anew,
        deadline=deadline,
    )
    found, interruption = scaling.run(task, command)
    if interruption is not None and not found:
        raise interruption
    with HeldSignals() as held:
        held.begin()
        result = scaling_result.result(task, found, command)
        with execute.replacing(folder):
            path = scaling_result.write(result, folder)
        if isinstance(picture := scaling_plot.picture(result), Picture):
            files.write({folder / execute.SCALING_PICTURE: figures.vector(picture, "svg")})
        else:
            typer.echo(f"samestep: no {execute.SCALING_PICTURE}: {picture.reason}", err=True)
    if (interruption := interruption or held.pending) is not None:
        whole = f"{len(found)} of {len(task.plans)} numbers of devices"
        typer.echo(f"samestep: interrupted after {whole}, which are kept: {path}", err=True)
        raise interruption
    if as_json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        scaling_report.render(result, Console())
        typer.echo(f"\nresult file: {path}")
    raise typer.Exit(max(exit_codes.exit_code(run) for run, _ in found))
