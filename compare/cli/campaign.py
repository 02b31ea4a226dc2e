"""`samestep campaign`."""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from compare.base import output
from compare.base.errors import make_printable
from compare.base.interface import Refused
from compare.base.interruptions import ENDING, REPORTED
from compare.cli import exit_codes, pair_options
from compare.cli.command_line import takes_options, to_path
from compare.report import columns, terminal
from compare.report.sentences import make_plain
from compare.studies import campaign as campaigns
from compare.studies import campaign_file, campaign_report, estimate, gpu_workers
from compare.studies.campaign_file import Campaign, CampaignCell
from compare.studies.cell_store import FAILED, PENDING, REFUSED, UNDECIDED, CellState, CellStore
from compare.studies.cells import find_place_here
from compare.studies.job_array import JobArray
from compare.studies.study import Study

_LEAST_WIDTH = 100
_ONCE_MORE = (FAILED, UNDECIDED)
"""States of cells that --redo names all at once."""


@takes_options("campaign")
def campaign(
    changes: dict[str, Any],
    as_json: bool,
    undecided: str,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.toml", parser=to_path, help="The campaign file.", show_default=False),
    ],
    is_list: Annotated[
        bool, typer.Option("--list", help="Show every cell with its state and how long the rest takes. Run nothing.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CELL", help="Run these cells only: names with * and ?, or keys. Repeatable."),
    ] = None,
    redo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL",
            help="Run these finished cells again, as --only names them, `failed` or `undecided`. Repeatable.",
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="slurm runs each cell as a job of an array, local as a process here."),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Option for sbatch, such as --partition=gpu. Repeatable."),
    ] = None,
) -> None:
    """Run the comparisons of a file. The same command goes on after any interruption.

    The file has `name`, `[defaults]`, `[grid]` with lists, and `[[comparison]]`. Its keys are the names of the settings
    of samestep compare. Finished cells are kept in the store. DIR gets campaign.json and one report.
    """
    if gpu_workers.is_worker():
        gpu_workers.end_with_parent()
    whole = campaign_file.read(file, pair_options.make_pair, out=changes.get("out"), store=changes.get("store"))
    folder = Path(changes.get("out") or Path("samestep-out") / whole.name)
    array = _make_array(executor, sbatch or [], file, folder, changes)
    if array is not None:
        whole = replace(whole, cells=[replace(each, cell=array.prepare(each.cell)) for each in whole.cells])
    chosen = campaigns.choose(whole, only or [], "--only")
    again = [pattern for pattern in redo or [] if pattern not in _ONCE_MORE]
    named = {each.cell.name for each in campaigns.choose(whole, again, "--redo", _ONCE_MORE)} if again else set[str]()
    output.make_folder(folder)
    refused = campaigns.check(whole)
    study = Study([each.cell for each in chosen], CellStore(changes.get("store")), ["samestep", *sys.argv[1:]])
    everything = Study([each.cell for each in whole.cells], study.store, study.command)
    if redo and not is_list and not gpu_workers.is_worker():
        _forget([each for each in chosen if each.cell.name not in refused], named, redo, study.store)
    states = {state.cell.name: state for state in everything.find_states()}
    if not as_json:
        _show_plan(states, chosen)
    if is_list:
        if as_json:
            _print_json(campaigns.to_json(whole, states, folder, study.command))
        return
    path = _write(whole, states, folder, study.command)

    def note(state: CellState) -> None:
        states[state.cell.name] = state
        _write(whole, states, folder, study.command)
        if not as_json and not state.kept and state.cell.name not in refused:
            said = "; ".join(filter(None, campaigns.list_rows([state])[0][1:3]))
            typer.echo(make_printable(f"{state.cell.name}: {said}"))

    try:
        if array is not None:
            array.run(study, note)
        else:
            count = gpu_workers.count_workers([states[each.cell.name] for each in chosen])
            if count > 1:
                gpu_workers.run(study, note, count, sys.argv[1:])
            study.run(note)
    except ENDING as interruption:
        finished = sum(state.is_finished for state in everything.find_states())  # also by other processes
        typer.echo(
            f"samestep: {finished} of {len(states)} cells are finished and kept; the same command goes on", err=True
        )
        interruption.add_note(REPORTED)
        raise
    if gpu_workers.is_worker():
        return
    pages = campaign_report.write(whole, list(states.values()), folder)
    if as_json:
        _print_json(campaigns.to_json(whole, states, folder, study.command))
    else:
        _show_end(states, [path, *pages])
    raise typer.Exit(_exit_code([states[each.cell.name] for each in chosen], undecided))


def _make_array(
    executor: str | None, options: Sequence[str], file: Path, folder: Path, changes: Mapping[str, Any]
) -> JobArray | None:
    """Return how cells become jobs, None if they run in this process."""
    if executor is None:
        if options:
            raise Refused(f"--sbatch {options[0]} needs --executor slurm")
        return None
    store = ["--store", str(Path(changes["store"]).absolute())] if changes.get("store") else []
    arguments = ["campaign", str(file.absolute()), "--out", str(folder), *store]
    array = JobArray(executor, options, folder.absolute() / "jobs", arguments)
    array.check()
    return array


def _write(whole: Campaign, states: Mapping[str, CellState], folder: Path, command: Sequence[str]) -> Path:
    """Write campaign.json, unless this process is one of several: then their parent writes it."""
    if gpu_workers.is_worker():
        return folder / campaigns.FILE_NAME
    return campaigns.write(whole, states, folder, command)


def _forget(chosen: Sequence[CampaignCell], named: Collection[str], states: Collection[str], store: CellStore) -> None:
    """Delete finished cells with one of these names or states from the store. They run again."""
    for each in chosen:
        is_again = each.cell.name in named
        if not is_again and (state := store.find(each.cell)) is not None:
            is_again = state.status in states
        if is_again:
            store.remove(each.cell)


def _show_plan(states: Mapping[str, CellState], chosen: Sequence[CampaignCell]) -> None:
    """Print the cells that run or are kept, and how long the rest takes."""
    console = Console()
    console.width = max(console.width, _LEAST_WIDTH)
    columns.show(campaigns.LISTED, campaigns.list_rows(states.values()), console, prose=(0, 1, 2))
    mine = [states[each.cell.name] for each in chosen]
    typer.echo("")
    pending = [state for state in mine if state.status == PENDING]
    places = {device: find_place_here(device) for device in {state.cell.device for state in pending}}
    left = f"; the rest takes {estimate.estimate([*states.values()], places)}" if pending else ""
    typer.echo(f"{campaigns.count_states(mine)}{left}")
    for status in _ONCE_MORE:
        if any(state.kept and state.status == status for state in mine):
            typer.echo(f"{status} cells are kept too; --redo {status} runs them again")


def _show_end(states: Mapping[str, CellState], paths: Sequence[Path]) -> None:
    console = Console()
    console.width = max(console.width, _LEAST_WIDTH)
    typer.echo("")
    columns.show(campaigns.LISTED, campaigns.list_rows(states.values()), console, prose=(0, 1, 2))
    if unlike := campaigns.describe_places(states.values()):
        console.print()
        console.print(Text(make_plain(unlike)))
    if results := [result for state in states.values() if (result := state.result) is not None]:
        console.print()
        terminal.render_summary(results, console)
    typer.echo(f"\n{campaigns.count_states(states.values())}")
    for path in paths:
        typer.echo(f"campaign file: {path}")


def _print_json(value: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def _exit_code(states: Sequence[CellState], undecided: str) -> int:
    statuses = {state.status for state in states}
    if FAILED in statuses:
        return exit_codes.CONTENDER_FAILED
    if REFUSED in statuses:
        return exit_codes.REFUSED
    return exit_codes.UNDECIDED if undecided == "fail" and UNDECIDED in statuses else 0
