"""`samestep scale`."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from compare.base import files, typed_json
from compare.base.interruptions import REPORTED, HeldSignals
from compare.cli import exit_codes
from compare.cli.command_line import takes_options
from compare.execution import execute
from compare.report import figures
from compare.report.plots.canvas import Picture
from compare.settings.options import SEVERAL_DEVICES, Settings
from compare.studies import scaling, scaling_plot, scaling_report, scaling_result


@takes_options("scale")
def scale(
    settings: Settings,
    as_json: bool,
    devices: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Numbers of devices, from few to many. Each is compared with the first. Default: 1,2.",
            show_default=False,
            rich_help_panel=SEVERAL_DEVICES,
        ),
    ] = "1,2",
    strong: Annotated[
        bool,
        typer.Option(
            "--strong",
            help="Strong scaling: all devices share one batch. Otherwise each device has a batch of its own.",
            rich_help_panel=SEVERAL_DEVICES,
        ),
    ] = False,
) -> None:
    """Compare contenders on more and more devices. Write DIR/result.json and scaling.svg.

    The report says how well each contender uses the devices. Contenders that do not say how they split a batch use ddp
    (torch) and sharded (jax). DIR/devices-N has each whole comparison.
    """
    command = ["samestep", *sys.argv[1:]]
    task = scaling.make(settings, scaling.parse_counts(devices), strong=strong)
    folder = task.out
    completed, interruption = scaling.run(task, command)
    if interruption is not None and not completed:
        raise interruption
    with HeldSignals() as held:
        held.hold()
        result = scaling_result.build(task, completed, command)
        with execute.replace_result(folder):
            path = scaling_result.write(result, folder)
        if isinstance(picture := scaling_plot.make_picture(result), Picture):
            files.write({folder / execute.SCALING_PICTURE: figures.draw(picture, "svg")})
        else:
            typer.echo(f"samestep: no {execute.SCALING_PICTURE}: {picture.reason}", err=True)
    if (interruption := interruption or held.pending) is not None:
        whole = f"{len(completed)} of {len(task.plans)} numbers of devices"
        typer.echo(f"samestep: interrupted after {whole}, which are kept: {path}", err=True)
        interruption.add_note(REPORTED)
        raise interruption
    if as_json:
        typer.echo(typed_json.to_text(result))
    else:
        scaling_report.render(result, Console())
        typer.echo(f"\nresult file: {path}")
    raise typer.Exit(max(exit_codes.exit_code(run) for run, _ in completed))
