"""`samestep ladder`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compare.base import files, output, typed_json
from compare.cli import exit_codes
from compare.cli.command_line import takes_options, to_path
from compare.execution import execute
from compare.report import figures
from compare.report.plots.canvas import Picture
from compare.settings import plan
from compare.settings.options import HOW, OUTPUT, Settings
from compare.studies import ladder as ladders
from compare.studies import ladder_report, ladder_rungs
from compare.studies.cell_store import CellStore
from compare.studies.ladder import Climb
from compare.studies.ladder_rungs import Ladder

_PICTURES = ("svg", "png")


@takes_options("ladder")
def ladder(
    settings: Settings,
    as_json: bool,
    rungs: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help=f"Climb these rungs only: {', '.join(ladder_rungs.CHANGES)}.",
            show_default=False,
            rich_help_panel=HOW,
        ),
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="Time requests of 1 and 32 images on every rung.", rich_help_panel=HOW)
    ] = False,
    latex: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=to_path,
            help="Write the tables for LaTeX.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Climb from the tutorial's form to the best known one, one change per rung, both frameworks side by side.

    Every rung is certified, and timed against the rung before. A rung that loses stays in the table, and the next one
    builds on the best. Write DIR/ladder.json and ladder.svg. The same command goes on after an interruption.
    """
    names = [name.strip() for name in rungs.split(",")] if rungs is not None else []
    command = ["samestep", *sys.argv[1:]]
    folder = plan.make_default_out() if settings.out is None else Path(settings.out)
    climb = Climb(
        replace(settings, out=folder),
        names,
        CellStore(settings.store),
        command,
        folder,
        has_latency=latency,
        on_rung=lambda text: typer.echo(f"samestep: {text}", err=True),
        on_change=lambda found: _write(found, folder),
    )
    climb.check()
    output.make_folder(folder)
    if latex is not None:
        output.make_file_folder("--latex", latex.parent)
    with execute.report_pause("rungs"):
        found = climb.run()
    picture = ladder_report.make_picture(found)
    if isinstance(picture, Picture):
        files.write({folder / f"ladder.{kind}": figures.draw(picture, kind) for kind in _PICTURES})
    else:
        typer.echo(f"samestep: no ladder.svg: {picture.reason}", err=True)
    if latex is not None:
        files.write({latex: ladder_report.make_latex(found).encode()})
    if as_json:
        typer.echo(typed_json.to_text(found))
    else:
        ladder_report.render(found, Console())
        typer.echo(f"\nladder file: {folder / ladders.FILE_NAME}")
    raise typer.Exit(_exit_code(found))


def _write(found: Ladder, folder: Path) -> None:
    ladders.write(found, folder)


def _exit_code(found: Ladder) -> int:
    """Return 3 or 1 where the first rung failed or does not agree. Later rungs may lose."""
    first = found.rungs[0].contenders.values()
    if any(each.images_per_second is None and not each.kept for each in first):  # too few rounds are no failure
        return exit_codes.CONTENDER_FAILED
    return 0 if all(each.kept for each in first) else exit_codes.CLAIM_FAILED
