"""`samestep compare`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from compare.base.workloads import Workload
from compare.cli import exit_codes, options, pair_options
from compare.cli.prepared_run import Prepared
from compare.cluster.cluster import Cluster
from compare.report import terminal
from compare.settings import plan
from compare.settings.contenders import spread, tuned
from compare.settings.naming import DEFAULT_CONTENDERS
from compare.settings.pair_spec import Request


@pair_options.taken
def compare(
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
    rounds: options.Rounds = None,
    quick: Annotated[bool, typer.Option("--quick", help="5 rounds, and no energy.")] = False,
    paper: options.Paper = False,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    margin: Annotated[float, typer.Option(help="Relative difference that matters.")] = 0.01,
    data: options.Data = None,
    images: options.Images = None,
    skip_agreement: Annotated[
        bool, typer.Option("--skip-agreement", help="Make no certificate; every verdict is then INVALID.")
    ] = False,
    skip_energy: Annotated[
        bool, typer.Option("--skip-energy", help="Measure no energy: some 20 s less for each contender on a GPU.")
    ] = False,
    skip_cold_compile: options.SkipColdCompile = False,
    search_anew: options.SearchAnew = False,
    deterministic: options.Deterministic = False,
    design: Annotated[str, typer.Option(help="alternating, turns or sequential (which is INVALID).")] = "alternating",
    deadline: options.Deadline = None,
    out: options.Out = None,
    as_json: options.Json = False,
    request: Request | None = None,
    cluster: Cluster | None = None,
) -> Prepared:
    """Train, certify and time contenders on the same machine, or machines; write DIR/result.json."""
    chosen = plan.make(
        spread(tuned(contenders or DEFAULT_CONTENDERS, tuning, knobs), parallel),
        out=out or exit_codes.default_out(),
        workload=workload,
        batch_size=batch_size,
        accumulate=accumulate,
        devices=devices,
        batch_norm=batch_norm,
        precision=precision,
        device=device,
        rounds=options.rounds_asked(rounds, quick, paper),
        seed=seed,
        epochs=epochs,
        margin=margin,
        data_folder=data,
        images=images,
        agreement=not skip_agreement,
        deterministic=deterministic,
        design=design,
        energy=not (quick or skip_energy),
        cold_compile=not skip_cold_compile,
        search_anew=search_anew,
        deadline=deadline,
        request=request,
        cluster=cluster,
    )

    def tell(result: dict[str, Any], path: Path) -> None:
        if as_json:
            typer.echo(json.dumps(result, indent=2, allow_nan=False))
        else:
            terminal.render(result, Console())
            typer.echo(f"\nresult file: {path}")

    return Prepared(chosen, tell)
