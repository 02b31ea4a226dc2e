"""Before anything is timed for the result: how many steps a block has, and when step times have settled."""

from collections.abc import Callable
from statistics import median

from compare.base.statistics import change_point

_TAIL, _LIMIT = 16, 64
_SIGNIFICANT, _SHIFT = 0.05, 0.01
_SLACK, _LARGEST_GROWTH = 1.2, 10.0

Timed = Callable[[int], float]
"""Trains that many steps and returns the seconds they took."""


def block_length(timed: Timed, unit: int, least_seconds: float, first: int) -> int:
    """Return a number of steps, a multiple of `unit` from `first` on, that lasts `least_seconds`; trains to find it."""
    steps = first
    while (seconds := timed(steps)) < least_seconds:
        growth = min(_LARGEST_GROWTH, max(2.0, _SLACK * least_seconds / max(seconds, 1e-9)))
        steps = _longer(steps, unit, growth)
    return steps


def chosen(timed: Timed, unit: int, least_seconds: float) -> tuple[int, list[float], bool]:
    """Return a block length of which the median block lasts `least_seconds` when step times have settled, and `settle`.

    A hiccup may end the search for a length too early, and steps become shorter in warming up.
    """
    first = unit
    while True:
        steps = block_length(timed, unit, least_seconds, first)
        blocks, steady = settle(timed, steps)
        if median(blocks) >= least_seconds:
            return steps, blocks, steady
        first = _longer(steps, unit, _SLACK * least_seconds / median(blocks))


def settle(timed: Timed, steps: int) -> tuple[list[float], bool]:
    """Time blocks of `steps` until the last 16 show no change point, at most 64 of them.

    A change counts if it is significant at the 5 % level and shifts the median by at least 1 % (Barrett et al.,
    "Virtual machine warmup blows hot and cold", OOPSLA 2017, for why a change point and not a spread). Returns the
    seconds of every block, and whether they have settled.
    """
    blocks: list[float] = []
    while len(blocks) < _LIMIT:
        blocks.append(timed(steps))
        if len(blocks) >= _TAIL:
            change = change_point(blocks[-_TAIL:])
            if change.probability > _SIGNIFICANT or abs(change.shift) < _SHIFT:
                return blocks, True
    return blocks, False


def _longer(steps: int, unit: int, growth: float) -> int:
    return unit * max(steps // unit + 1, int(steps * growth) // unit)
