"""`samestep agree`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from compare.base import files
from compare.base.workloads import Workload
from compare.cli import exit_codes, options, pair_options
from compare.cli.prepared_run import Prepared
from compare.cluster.cluster import Cluster
from compare.execution import execute
from compare.report import certificate_text, figures
from compare.report.plots import loss_plot
from compare.report.plots.canvas import Picture
from compare.settings import plan
from compare.settings.contenders import of_certificate, spread, tuned
from compare.settings.naming import DEFAULT_CONTENDERS
from compare.settings.pair_spec import Request


@pair_options.taken
def agree(
    contenders: options.Contenders = None,
    tuning: options.Tuning = None,
    knobs: options.Knobs = None,
    workload: str | Workload = "digits-cnn",
    batch_size: options.BatchSize = None,
    accumulate: options.Accumulate = 1,
    devices: options.Devices = 1,
    parallel: options.Parallel = None,
    batch_norm: options.BatchNorm = "sync",
    precision: options.Precision = "float32",
    device: options.Device = "auto",
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    seeds: Annotated[int, typer.Option(help="Training runs per contender for the accuracy gate.")] = 5,
    data: options.Data = None,
    images: options.Images = None,
    deterministic: options.Deterministic = False,
    deadline: options.Deadline = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Every tensor in execution order.")] = False,
    out: options.Out = None,
    as_json: options.Json = False,
    request: Request | None = None,
    cluster: Cluster | None = None,
) -> Prepared:
    """Prove that contenders compute the same thing; write DIR/result.json and trajectory.svg.

    All gates but `update`, which is of the batch that `compare` times; nothing is timed.
    """
    plan.check_seeds(seeds)
    certified = plan.trained(workload, precision)
    unnamed = DEFAULT_CONTENDERS if tuning or knobs else of_certificate(certified)
    chosen = plan.make(
        spread(tuned(contenders or unnamed, tuning, knobs), parallel),
        out=out or exit_codes.default_out(),
        workload=certified,
        batch_size=batch_size,
        accumulate=accumulate,
        devices=devices,
        batch_norm=batch_norm,
        precision=precision,
        device=device,
        rounds=None,
        seed=seed,
        epochs=epochs,
        data_folder=data,
        images=images,
        deterministic=deterministic,
        deadline=deadline,
        request=request,
        cluster=cluster,
    )

    def tell(result: dict[str, Any], path: Path) -> None:
        if result["agreement"]["trajectory"] and isinstance(curves := loss_plot.picture(result), Picture):
            files.write({chosen.out / execute.PICTURE: figures.vector(curves, "svg")})
        if as_json:
            typer.echo(json.dumps(result, indent=2, allow_nan=False))
        else:
            certificate_text.render(result, Console(), verbose=verbose)
            typer.echo(f"result file: {path}")

    return Prepared(chosen, tell, seeds)
