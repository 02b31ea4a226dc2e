"""Say how long cells will take: from finished cells of the same kind, and else from a rough rule."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from compare.base import early_stopping
from compare.studies.cell_store import PENDING, CellState
from compare.studies.cells import Place

_START_SECONDS = {"cpu": 5.0, "cuda": 12.0}
"""About how long a contender's process takes until it is warm."""

_OTHER_PROCESSES = 5
"""Processes of a contender beside those of its rounds: training, certificate, memory."""


class Seconds(NamedTuple):
    """The shortest and the longest time to expect."""

    low: float
    high: float

    def __str__(self) -> str:
        low, high = describe(self.low), describe(self.high)
        return f"about {high}" if low == high else f"about {low} to {high}"


def estimate(states: Sequence[CellState], places: Mapping[str, Place], at_once: int = 1) -> Seconds:
    """Return how long the pending cells of a study will take.

    Args:
        states: the states of all cells. Times of finished cells correct the rule.
        places: this machine by device. Times of other machines are not used.
        at_once: how many cells run at once.
    """
    finished = [
        (state, state.seconds / _middle(state.cell.facts))
        for state in states
        if state.seconds and state.place in places.values()
    ]
    low = high = 0.0
    for state in states:
        if state.status != PENDING:
            continue
        facts = state.cell.facts
        alike = [factor for each, factor in finished if each.cell.facts["workload"] == facts["workload"]]
        factor = median(alike or [factor for _, factor in finished] or [1.0])
        shortest, longest = _guess(facts)
        low, high = low + factor * shortest, high + factor * longest
    return Seconds(low / at_once, high / at_once)


def describe(seconds: float) -> str:
    """Return a duration with two digits or less: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _middle(facts: Mapping[str, Any]) -> float:
    return sum(_guess(facts)) / 2


def _guess(facts: Mapping[str, Any]) -> Seconds:
    """Return a rough time for one cell: its processes by the time that each needs."""
    spec = facts["spec"]
    rounds = spec["rounds"] if "rounds" in spec else spec["rounds_requested"]
    fewest = early_stopping.LEAST_ROUNDS if facts["looks"] else rounds
    each = _START_SECONDS[spec["device"]] * len(facts["contenders"])
    return Seconds(each * (_OTHER_PROCESSES + fewest), each * (_OTHER_PROCESSES + rounds))
