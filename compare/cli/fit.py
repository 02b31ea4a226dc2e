"""`samestep fit`."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from compare.cli import exit_codes, options
from compare.execution import execute, progress
from compare.settings.contenders import tuned
from compare.settings.naming import DEFAULT_CONTENDERS
from compare.studies import fit_report, fitting


def fit(
    contenders: options.Contenders = None,
    tuning: options.Tuning = None,
    knobs: options.Knobs = None,
    workload: options.WorkloadName = "digits-cnn",
    batch_size: Annotated[
        int | None,
        typer.Option(help="Images per step, whose least memory is searched for. Default: the workload's."),
    ] = None,
    precision: options.Precision = "float32",
    device: options.Device = "auto",
    seed: options.Seed = 0,
    memory: options.MemoryLimit = None,
    deadline: options.Deadline = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Search for the largest batch that fits, and for the least memory that a batch needs; write DIR/fit.json."""
    task = fitting.make(
        tuned(contenders or DEFAULT_CONTENDERS, tuning, knobs),
        memory=memory,
        out=out or exit_codes.default_out(),
        workload=workload,
        batch_size=batch_size,
        precision=precision,
        device=device,
        seed=seed,
        deadline=deadline,
    )
    with execute.interruptible(until="all searches were done, and nothing is kept"), progress.show() as advance:
        found = fitting.run(task, advance)
    result = fitting.result(task, found, ["samestep", *sys.argv[1:]])
    path = fitting.write(result, task.plan.out)
    if as_json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        fit_report.render(result, Console())
        typer.echo(f"\nresult file: {path}")
    raise typer.Exit(exit_codes.CONTENDER_FAILED if fitting.failed(result) else 0)
