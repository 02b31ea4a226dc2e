"""Execute a plan from beginning to end: show progress, judge the run and write the result file."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from compare.base import files
from compare.base.interface import Refused
from compare.base.interruptions import ENDING, REPORTED, HeldSignals, TimeOver
from compare.execution import build_result, explanation, phases, progress, quiet, run_times
from compare.execution.progress import PhaseClock
from compare.execution.run_state import RunState
from compare.results import result_file, thinning
from compare.results.model import Result
from compare.settings.plan import Plan

PICTURE = "trajectory.svg"
"""The file of training losses that `samestep agree` draws beside its result."""

_NOTICEABLE_SECONDS = 10.0
"""A run that takes longer says so before it starts, if an equal one ran here before."""

SCALING_PICTURE = "scaling.svg"
"""The file of efficiencies that `samestep scale` draws beside its result."""


@contextmanager
def report_interruption(part: str = "", until: str = "there was anything to keep") -> Generator[None]:
    """Report an interruption by Ctrl-C or a signal in the `with` block, in which nothing is kept.

    `part` starts the message, and `until` ends it: it says from when on something would be kept.
    """
    try:
        yield
    except ENDING as interruption:
        typer.echo(f"samestep: {part}{_name_end(interruption)} before {until}", err=True)
        interruption.add_note(REPORTED)
        raise


@contextmanager
def report_pause(what: str) -> Generator[None]:
    """Report an interruption of a study, which keeps `what` it has finished, such as sweeps."""
    try:
        yield
    except ENDING as interruption:
        typer.echo(f"samestep: interrupted; finished {what} are kept, and the same command goes on", err=True)
        interruption.add_note(REPORTED)
        raise


@contextmanager
def replace_result(folder: Path, part: str = "") -> Generator[None]:
    """Report that the `with` block replaces a result in `folder`, and then delete the pictures of the old result."""
    if (folder / result_file.FILE_NAME).exists():
        typer.echo(f"samestep: {part}{folder / result_file.FILE_NAME} was there before, and is replaced", err=True)
    yield
    for name in (PICTURE, SCALING_PICTURE, explanation.TIMELINE):
        (folder / name).unlink(missing_ok=True)


def execute(plan: Plan, command: Sequence[str], *, seeds: int | None = None, part: str = "") -> tuple[Result, Path]:
    """Execute a plan and return its result and the result's file in the plan's folder.

    Contenders are trained, certified and timed. With `seeds`, the number of training runs per contender, they are
    certified by all gates and not timed. The result names `command` as its origin. `part` starts every message.

    An interruption after the first timed rounds does not lose them. The result of all complete rounds is written, a
    message says where, and the interruption goes on.

    Raises:
        Refused: the result cannot be written there; the message says where it is instead.
    """
    result, path, interruption = execute_until_interrupted(plan, command, seeds=seeds, part=part)
    if interruption is not None:
        raise interruption
    return result, path


def execute_until_interrupted(
    plan: Plan, command: Sequence[str], *, seeds: int | None = None, part: str = ""
) -> tuple[Result, Path, BaseException | None]:
    """Return what `execute` returns, and the interruption, for callers that must clean up before they raise it."""
    clock = PhaseClock(run_times.find(plan))
    if seeds is None:
        _announce(plan, part, clock)
    with HeldSignals() as signals:
        with report_interruption(part), progress.show(part, clock) as advance:
            if seeds is None:
                state = phases.run_comparison(plan, advance, signals)
            else:
                state = phases.run_agreement(plan, seeds, advance, signals)
            clock.enter("")
        if signals.pending is None and all(run.status == "ok" for run in state.runs):
            run_times.keep(plan, clock.seconds)
        try:
            result = _shrink(build_result.build(state, command), part)
            with replace_result(plan.out, part):
                path = result_file.write_or_spare(result, plan.out)
            if (drawn := explanation.draw_timeline(state)) is not None and path.parent == plan.out:
                files.write({plan.out / explanation.TIMELINE: drawn})
        except Refused as refusal:
            if signals.pending is None:
                raise
            typer.echo(f"samestep: {part}{refusal}", err=True)
            raise signals.pending from refusal
    if signals.pending is not None:
        what = f"{_name_end(signals.pending)} {_describe_interruption(state)}"
        typer.echo(f"samestep: {part}{what} kept: {path}", err=True)
        signals.pending.add_note(REPORTED)
    return result, path, signals.pending


def _announce(plan: Plan, part: str, clock: PhaseClock) -> None:
    """Say how long the run will take, if that is known, and whether the machine is quiet enough for it."""
    left, load = clock.estimate_left(), quiet.describe_load(plan)
    texts = list[str]()
    if left is not None and left >= _NOTICEABLE_SECONDS:
        texts.append(f"the last equal run here took {progress.describe_seconds(left)}")
    if load is not None:
        texts.append(load)
    elif texts and plan.device == "cpu":
        texts.append("the machine is quiet")
    if texts:
        typer.echo(f"samestep: {part}{'; '.join(texts)}", err=True)


def _name_end(interruption: BaseException) -> str:
    return "stopped by the budget" if isinstance(interruption, TimeOver) else "interrupted"


def _describe_interruption(state: RunState) -> str:
    """Say when a run was interrupted, and which part of it is kept."""
    rounds = state.plan.rounds
    if (complete := len(state.rounds)) < rounds:
        if not complete:
            return f"before one of {rounds} rounds was whole; all that came before them is"
        return f"after {complete} of {rounds} rounds, which are"
    searched = any(run.status == "oom" for run in state.runs)
    return f"{'in the search for a smaller batch' if searched else 'at the end'}; all that came before it is"


def _shrink(result: Result, part: str) -> Result:
    """Return the result without telemetry between blocks, if its file would be too large to read."""
    if result_file.is_readable_size(result):
        return result
    less = thinning.thin(result)
    if count := less.telemetry.left_out:
        left_out = f"{count:,} samples of telemetry between blocks are left out"
        typer.echo(f"samestep: {part}{left_out}, for the file's size", err=True)
    return less
