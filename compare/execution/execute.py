"""A plan carried out from beginning to end: progress shown, everything judged, the result file written."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from compare.base.interface import Refused
from compare.base.interruptions import ENDING, HeldSignals
from compare.execution import build_result, phases, progress
from compare.execution.run_state import RunState
from compare.results import result_file, thinning
from compare.settings.plan import Plan

PICTURE = "trajectory.svg"
"""The file of training losses that `samestep agree` draws beside its result."""

SCALING_PICTURE = "scaling.svg"
"""The file of efficiencies that `samestep scale` draws beside its result."""


@contextmanager
def interruptible(part: str = "", until: str = "there was anything to keep") -> Generator[None]:
    """Say after `part` that nothing is kept if Ctrl-C, or a signal that ends the program, comes meanwhile.

    `until` says when something would have been.
    """
    try:
        yield
    except ENDING:
        typer.echo(f"samestep: {part}interrupted before {until}", err=True)
        raise


@contextmanager
def replacing(folder: Path, part: str = "") -> Generator[None]:
    """Write a result in `folder` meanwhile; say after `part` that it replaces another, whose pictures then go."""
    if (folder / result_file.FILE_NAME).exists():
        typer.echo(f"samestep: {part}{folder / result_file.FILE_NAME} was there before, and is replaced", err=True)
    yield
    for name in (PICTURE, SCALING_PICTURE):
        (folder / name).unlink(missing_ok=True)


def execute(
    plan: Plan, command: Sequence[str], *, seeds: int | None = None, part: str = ""
) -> tuple[dict[str, Any], Path]:
    """Return the result of a plan, and its file in the plan's folder.

    Contenders are trained, certified and timed; with `seeds`, the training runs per contender, they are certified by
    all gates and nothing is timed. The result says that `command` asked for it. `part` is said before each phase.

    Where the run is interrupted once timed rounds have begun, the result of all that came before, and of rounds that
    were whole, is written, standard error says where, and the interruption goes on.

    Raises:
        Refused: where the result cannot be written there, with the place that it is at instead.
    """
    result, path, interruption = execute_until_interrupted(plan, command, seeds=seeds, part=part)
    if interruption is not None:
        raise interruption
    return result, path


def execute_until_interrupted(
    plan: Plan, command: Sequence[str], *, seeds: int | None = None, part: str = ""
) -> tuple[dict[str, Any], Path, BaseException | None]:
    """Return what `execute` does, and what interrupted it, for who has still to do before that goes on."""
    with HeldSignals() as held:
        with interruptible(part), progress.show(part) as advance:
            state = (
                phases.run_comparison(plan, advance, held)
                if seeds is None
                else phases.run_agreement(plan, seeds, advance, held)
            )
        try:
            result = _of_readable_size(build_result.result(plan, state, command), part)
            with replacing(plan.out, part):
                path = result_file.kept(result, plan.out)
        except Refused as refusal:
            if held.pending is None:
                raise
            typer.echo(f"samestep: {part}{refusal}", err=True)
            raise held.pending from refusal
    if held.pending is not None:
        typer.echo(f"samestep: {part}interrupted {_when(plan, state)} kept: {path}", err=True)
    return result, path, held.pending


def _when(plan: Plan, state: RunState) -> str:
    """Return when a run was interrupted, and what is kept of it."""
    if (whole := len(state.rounds)) < plan.rounds:
        if not whole:
            return f"before one of {plan.rounds} rounds was whole; all that came before them is"
        return f"after {whole} of {plan.rounds} rounds, which are"
    searched = any(run.status == "oom" for run in state.runs)
    return f"{'in the search for a smaller batch' if searched else 'at the end'}; all that came before it is"


def _of_readable_size(result: dict[str, Any], part: str) -> dict[str, Any]:
    """Return the result, without telemetry that nothing is computed from where its file would be too large to read."""
    if result_file.fits(result):
        return result
    less = thinning.thinned(result)
    if count := less["telemetry"]["left_out"]:
        left_out = f"{count:,} samples of telemetry between blocks are left out"
        typer.echo(f"samestep: {part}{left_out}, for the file's size", err=True)
    return less
