"""The command line. Exit codes: 0 done, 1 a claim failed, 2 refused input, 3 a contender failed."""

import json
import signal
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from compare import __version__, environment, judgement, options, plan, results, runner
from compare import selftest as selftests
from compare.fitting import search
from compare.interface import Refused
from compare.report import certificate, figures, progress, terminal
from compare.report import fit as fit_report
from compare.report import selftest as proof_table
from compare.workloads import WORKLOADS

CLAIM_FAILED, REFUSED, CONTENDER_FAILED = 1, 2, 3

app = typer.Typer(
    name="samestep",
    help="Train the same CNN in JAX and in PyTorch, prove that both compute the same thing, and compare their speed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"samestep {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and end.")
    ] = False,
) -> None:
    del version


@app.command()
def compare(
    contenders: options.Contenders = None,
    workload: options.WorkloadName = "digits-cnn",
    batch_size: options.BatchSize = None,
    precision: options.Precision = "float32",
    device: options.Device = "auto",
    rounds: Annotated[int, typer.Option(help="Rounds of fresh processes.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="5 rounds, and no energy.")] = False,
    paper: Annotated[bool, typer.Option("--paper", help="20 rounds.")] = False,
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    margin: Annotated[float, typer.Option(help="Relative difference that matters.")] = 0.01,
    data: options.Data = None,
    skip_agreement: Annotated[
        bool, typer.Option("--skip-agreement", help="Make no certificate; every verdict is then INVALID.")
    ] = False,
    deterministic: options.Deterministic = False,
    design: Annotated[str, typer.Option(help="alternating, turns or sequential (which is INVALID).")] = "alternating",
    deadline: options.Deadline = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Train, certify and time contenders on the same machine; write DIR/result.json."""
    if quick and paper:
        raise Refused("--quick and --paper exclude each other")
    chosen = plan.make(
        contenders or ["torch", "jax"],
        out=out or _default_out(),
        workload=workload,
        batch_size=batch_size,
        precision=precision,
        device=device,
        rounds=5 if quick else 20 if paper else rounds,
        seed=seed,
        epochs=epochs,
        margin=margin,
        data_folder=data,
        agreement=not skip_agreement,
        deterministic=deterministic,
        design=design,
        energy=not quick,
        deadline=deadline,
    )
    with progress.shown() as advance:
        outcomes = runner.run(chosen, advance)
    result = judgement.result(chosen, outcomes, ["samestep", *sys.argv[1:]])
    path = results.write(result, chosen.out)
    if as_json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        terminal.render(result, Console())
        typer.echo(f"\nresult file: {path}")
    raise typer.Exit(_exit_code(result))


@app.command()
def agree(
    contenders: options.Contenders = None,
    workload: options.WorkloadName = "digits-cnn",
    batch_size: options.BatchSize = None,
    precision: options.Precision = "float32",
    device: options.Device = "auto",
    epochs: options.Epochs = None,
    seed: options.Seed = 0,
    seeds: Annotated[int, typer.Option(help="Training runs per contender for the accuracy gate.")] = 5,
    data: options.Data = None,
    deterministic: options.Deterministic = False,
    deadline: options.Deadline = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Every tensor in execution order.")] = False,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Prove that contenders compute the same thing: all gates, no timing; write DIR/result.json and trajectory.svg."""
    if not 2 <= seeds <= 1000:
        raise Refused(f"--seeds {seeds} is not allowed; allowed: a whole number from 2 to 1000")
    chosen = plan.make(
        contenders or ["torch", "jax"],
        out=out or _default_out(),
        workload=workload,
        batch_size=batch_size,
        precision=precision,
        device=device,
        rounds=None,
        seed=seed,
        epochs=epochs,
        data_folder=data,
        deterministic=deterministic,
        deadline=deadline,
    )
    with progress.shown() as advance:
        outcomes = runner.agree(chosen, seeds, advance)
    result = judgement.result(chosen, outcomes, ["samestep", *sys.argv[1:]])
    path = results.write(result, chosen.out)
    if result["agreement"]["trajectory"]:
        figures.loss_curves(result["agreement"]["trajectory"], chosen.out / "trajectory.svg")
    if as_json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        certificate.render(result, Console(), verbose=verbose)
        typer.echo(f"result file: {path}")
    raise typer.Exit(_exit_code(result))


@app.command()
def selftest(
    backends: Annotated[list[str] | None, typer.Argument(help="torch, jax or both.", show_default=False)] = None,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the proofs as JSON alone.")] = False,
) -> None:
    """Prove on this machine, with known inputs, that samestep measures what it says."""
    with progress.shown() as advance:
        proofs = selftests.run(backends or ["torch", "jax"], device, advance)
    if as_json:
        typer.echo(json.dumps([asdict(proof) for proof in proofs], indent=2))
    else:
        proof_table.render(proofs, Console())
    raise typer.Exit(CLAIM_FAILED if any(proof.held is False for proof in proofs) else 0)


@app.command()
def fit(
    contenders: options.Contenders = None,
    workload: options.WorkloadName = "digits-cnn",
    batch_size: options.BatchSize = None,
    precision: options.Precision = "float32",
    device: options.Device = "auto",
    seed: options.Seed = 0,
    memory: options.MemoryLimit = None,
    deadline: options.Deadline = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Search for the largest batch that fits, and for the least memory that a batch needs; write DIR/fit.json."""
    task = search.make(
        contenders or ["torch", "jax"],
        memory=memory,
        out=out or _default_out(),
        workload=workload,
        batch_size=batch_size,
        precision=precision,
        device=device,
        seed=seed,
        deadline=deadline,
    )
    with progress.shown() as advance:
        found = search.run(task, advance)
    result = search.result(task, found, ["samestep", *sys.argv[1:]])
    path = search.write(result, task.plan.out)
    if as_json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        fit_report.render(result, Console())
        typer.echo(f"\nresult file: {path}")
    raise typer.Exit(CONTENDER_FAILED if search.failed(result) else 0)


@app.command()
def workloads() -> None:
    """List what can be trained."""
    table = Table(box=None, pad_edge=False)
    for column in ("workload", "image", "batch", "epochs", "optimizer", "what it is"):
        table.add_column(column)
    for each in WORKLOADS.values():
        image = "x".join(map(str, each.model.image))
        optimizer = f"{each.optimizer.name} {each.optimizer.learning_rate:g}"
        table.add_row(each.name, image, str(each.batch_size), str(each.epochs), optimizer, each.summary)
    Console().print(table)


@app.command()
def env() -> None:
    """Print what a reader needs to repeat a run here: packages, devices, variables, as JSON."""
    typer.echo(json.dumps(environment.describe(), indent=2))


def _default_out() -> Path:
    return Path("samestep-out") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


def _exit_code(result: dict[str, Any]) -> int:
    if judgement.contender_failed(result):
        return CONTENDER_FAILED
    return CLAIM_FAILED if judgement.claim_failed(result) else 0


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Run the program; the console script's entry point."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, _end)  # so that children are ended on the way out
    try:
        app()
    except Refused as error:
        typer.echo(f"samestep: {error}", err=True)
        sys.exit(REFUSED)
