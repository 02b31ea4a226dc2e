"""The picture of a search: the step time of every candidate, a bar for each, so that it fits a slide."""

from collections.abc import Sequence
from typing import Any

from compare.base.interface import INFER
from compare.report.palette import find_light
from compare.report.plots.canvas import Absent, Figure, Picture, choose_colour, shorten
from compare.studies.tune import Trial, Tuning

_INCHES, _BAR_INCHES, _AXIS_INCHES = 7.2, 0.24, 0.75
_MOST_BARS = 12
_LONGEST_LINE, _LONGEST_NAME = 40, 80


def make_picture(tuning: Tuning) -> Picture | Absent:
    """Return the picture: the fastest candidates of each backend, with the winner and those that do not agree."""
    bars = _list_bars(tuning)
    if not bars:
        return Absent("no candidate was timed")
    caption = (
        "Time of each candidate in its last sweep: shorter is faster. Sweeps are timed one after the other, so bars of "
        "different sweeps are a guide. A hatched bar did not agree."
    )
    setting = (
        f"{tuning.task}, {tuning.precision}, batch {tuning.batch_size}, {tuning.device}; "
        f"n = {len(tuning.trials)} candidates."
    )
    title = f"Search for the fastest knobs of {tuning.workload}"
    return Picture("tune", title, caption, setting, lambda: _draw(bars, name_timed(tuning)))


def name_timed(tuning: Tuning) -> str:
    """Return the word for what was timed."""
    return "request" if tuning.task == INFER else "step"


def _list_bars(tuning: Tuning) -> list[tuple[Trial, str]]:
    """Return the fastest candidates of each backend with what is said about each, the fastest first.

    Backends stand in the order of the command, so that they have the colours of other pictures.
    """
    bars = list[tuple[Trial, str]]()
    for backend in dict.fromkeys([*tuning.ended, *(trial.contender.partition(":")[0] for trial in tuning.trials)]):
        timed = [trial for trial in tuning.trials if trial.contender.startswith(f"{backend}:") and trial.step_seconds]
        timed.sort(key=lambda trial: trial.step_seconds or 0.0)
        for trial in timed[:_MOST_BARS]:
            is_winner = tuning.winner.get(backend) == trial.contender
            said = "winner, certified" if is_winner else "does not agree" if trial.agreement is False else ""
            bars.append((trial, said))
    return bars


def _break_name(name: str) -> str:
    """Return a contender's name on one line, or on two if it is long. Two names that differ must look different."""
    name = shorten(name, _LONGEST_NAME)
    if len(name) <= _LONGEST_LINE or "+" not in name:
        return name
    middle = min((index for index, letter in enumerate(name) if letter == "+"), key=lambda i: abs(i - len(name) / 2))
    return f"{name[: middle + 1]}\n{name[middle + 1 :]}"


def _draw(bars: Sequence[tuple[Trial, str]], timed: str) -> Figure:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(_INCHES, _BAR_INCHES * len(bars) + _AXIS_INCHES), layout="constrained")
    axes: Any = figure.subplots()
    backends = list(dict.fromkeys(trial.contender.partition(":")[0] for trial, _ in bars))
    longest = max(trial.step_seconds or 0.0 for trial, _ in bars)
    for place, (trial, said) in enumerate(bars):
        colour = choose_colour(backends.index(trial.contender.partition(":")[0]))
        milliseconds = 1e3 * (trial.step_seconds or 0.0)
        is_wrong = trial.agreement is False
        axes.barh(
            place,
            milliseconds,
            0.76,
            facecolor=find_light("paper") if is_wrong else colour,
            edgecolor=colour,
            hatch="////" if is_wrong else None,
        )
        text = f"{milliseconds:.4g}" + (f"  {said}" if said else "")
        axes.annotate(text, (milliseconds, place), xytext=(4, 0), textcoords="offset points", va="center")
    names = [_break_name(trial.contender) for trial, _ in bars]
    axes.set_yticks(range(len(bars)), names, fontsize="small", linespacing=1.05)
    axes.set_xlim(0, 1.35e3 * longest)
    axes.set_xlabel(f"milliseconds a {timed}, left is faster")
    axes.invert_yaxis()
    return figure
