"""`samestep tune`."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from compare.base import files, output, typed_json
from compare.base.arguments import LARGEST
from compare.base.errors import make_printable
from compare.base.interface import Refused
from compare.cli import exit_codes
from compare.cli.command_line import takes_options, write_options
from compare.execution import execute
from compare.report import columns, figures
from compare.report.plots.canvas import Picture
from compare.report.sentences import DASH
from compare.settings import plan
from compare.settings.options import HOW, Settings
from compare.studies import tune as tuning
from compare.studies import tune_picture
from compare.studies.cell_store import CellStore
from compare.studies.tune import OBJECTIVES, Limits, Search, Trial, Tuning

_MEBIBYTE = 2**20
_LEAST_WIDTH = 100


@takes_options("tune")
def tune(
    settings: Settings,
    words: dict[str, Any],
    as_json: bool,
    budget: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help=f"Time of the whole search. Default: {tuning.MOST_SECONDS:g}.",
            show_default=False,
            rich_help_panel=HOW,
        ),
    ] = tuning.MOST_SECONDS,
    memory: Annotated[
        float | None,
        typer.Option(
            metavar="MIB", help="Leave out tunings that take more memory.", show_default=False, rich_help_panel=HOW
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(metavar="NAME", help="time or energy. Default: time.", show_default=False, rich_help_panel=HOW),
    ] = tuning.TIME,
    screen: Annotated[
        bool,
        typer.Option("--screen", help="Time two sweeps, and claim nothing.", rich_help_panel=HOW),
    ] = False,
) -> None:
    """Search the fastest knobs of each backend here, for a workload or your own pair.

    The same command goes on after an interruption. A winner is certified before it is named. The tuning `best` then
    stands for it. Write DIR/tuning.json and tune.svg.
    """
    if not budget > 0:  # NaN neither
        raise Refused(f"--budget {budget:g} is not allowed; allowed: seconds above 0")
    if memory is not None and not 0 < memory <= LARGEST:
        raise Refused(f"--memory {memory:g} is not allowed; allowed: MiB above 0, up to {LARGEST}")
    if objective not in OBJECTIVES:
        raise Refused(f"--objective {objective!r} is not allowed; allowed: {', '.join(OBJECTIVES)}")
    tuning.list_backends(settings)
    folder = plan.make_default_out() if settings.out is None else Path(settings.out)
    output.make_folder(folder)
    limits = Limits(budget, None if memory is None else round(memory * _MEBIBYTE), objective, screen)
    search = Search(settings, limits, CellStore(settings.store), ["samestep", *sys.argv[1:]], folder, _report_sweep)
    with execute.report_pause("sweeps"):
        found = search.run()
    path = tuning.write(found, folder)
    picture = tune_picture.make_picture(found)
    if isinstance(picture, Picture):
        files.write({folder / f"tune.{kind}": figures.draw(picture, kind) for kind in ("svg", "png")})
    if as_json:
        typer.echo(typed_json.to_text(found))
    else:
        _render(found, is_screen=screen)
        if found.winner:
            typer.echo(f"\n{_write_command(found, words)}")
            if not limits.is_for_speed:
                typer.echo("not kept as the tuning best, which stands for the fastest")
        typer.echo(f"\ntuning file: {path}")
    raise typer.Exit(0 if screen or found.winner else exit_codes.CLAIM_FAILED)


def _report_sweep(text: str) -> None:
    typer.echo(f"samestep: {text}", err=True)


def _render(found: Tuning, *, is_screen: bool) -> None:
    console = Console()
    console.width = max(console.width, _LEAST_WIDTH)
    rows = [(trial.contender, *_list_figures(trial), trial.reason or "") for trial in found.trials]
    time = f"{tune_picture.name_timed(found)} (ms)"
    columns.show(("contender", time, "ratio to the first", "agreement", "reason"), rows, console, prose=(0, 4))
    typer.echo("")
    for backend, reason in found.ended.items():
        name = found.winner.get(backend)
        if is_screen:
            text = f"{backend}: a screening claims nothing ({reason})"
        elif name is None:
            text = f"{backend}: no candidate was certified ({reason})"
        else:
            gain = found.gains[backend]
            faster = f"{1 / gain:.3g} times as fast as the default, certified"
            text = f"{name}: {faster if gain != 1 else 'the default, and the fastest that is certified'} ({reason})"
        console.print(Text(make_printable(text)))
        if untried := found.untried.get(backend):
            console.print(Text(make_printable(f"{backend}: not tried: {', '.join(untried)}")))


def _write_command(found: Tuning, words: Mapping[str, Any]) -> str:
    """Return the command that compares the winners on the same work."""
    options = write_options(words, "compare")
    if not any(words[name] for name in ("workload", "jax", "torch")):
        options = ["--workload", found.workload, *options]
    return shlex.join(["samestep", "compare", *found.winner.values(), *options])


def _list_figures(trial: Trial) -> tuple[str, str, str]:
    agreement = {True: "pass", False: "fail", None: DASH}[trial.agreement]
    step = DASH if trial.step_seconds is None else f"{1e3 * trial.step_seconds:.4g}"
    return step, DASH if trial.ratio is None else f"{trial.ratio:.3f}", agreement
