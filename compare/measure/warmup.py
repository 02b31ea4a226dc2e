"""Before anything is timed for the result: how many steps a block has, and when step times have settled."""

from collections.abc import Callable

_TAIL, _LIMIT, _FLAT = 3, 25, 0.05
_SLACK, _LARGEST_GROWTH = 1.2, 10.0

Timed = Callable[[int], float]
"""Trains that many steps and returns the seconds they took."""


def block_length(timed: Timed, unit: int, least_seconds: float) -> int:
    """Return a number of steps, a multiple of `unit`, that lasts at least `least_seconds`; trains while searching."""
    steps = unit
    while (seconds := timed(steps)) < least_seconds:
        growth = min(_LARGEST_GROWTH, max(2.0, _SLACK * least_seconds / max(seconds, 1e-9)))
        steps = unit * max(steps // unit + 1, int(steps * growth) // unit)
    return steps


def settle(timed: Timed, steps: int) -> tuple[list[float], bool]:
    """Time blocks of `steps` until the last three differ by at most 5 %, at most 25 of them.

    Returns the seconds of every block, and whether they have settled.
    """
    blocks: list[float] = []
    while len(blocks) < _LIMIT:
        blocks.append(timed(steps))
        tail = blocks[-_TAIL:]
        if len(tail) == _TAIL and max(tail) <= (1 + _FLAT) * min(tail):
            return blocks, True
    return blocks, False
