"""Choose the number of steps in a timed block, and wait until step times settle."""

from collections.abc import Callable, Mapping

from compare.base.interface import INFER, TRAIN
from compare.base.statistics import change_point

_LIMIT, _SHIFT = 64, 0.01
_TAIL, _SIGNIFICANT = 16, 0.05
_SHORT_TAIL, _SHORT_SIGNIFICANT = 12, 0.1
"""Blocks that are enough if they last `_SHORT_SECONDS`. `change_point` is cautious about few values: of 12 without a
change, 3 in 100 cases have a probability below 0.1."""
_SHORT_SECONDS = 1.2
_SLACK, _LARGEST_GROWTH = 1.2, 10.0
_BLOCK_SECONDS: Mapping[str, float] = {TRAIN: 0.025, INFER: 0.005}
"""How long a block of the warm-up lasts at least, by task, where timed blocks are not shorter.

Every round has 12 blocks or more, for requests as many of each batch size.
"""

Timed = Callable[[int], float]
"""Trains a number of steps and returns their seconds."""


def find_block_length(time: Timed, unit: int, least_seconds: float, first: int) -> int:
    """Return a number of steps, a multiple of `unit` and at least `first`, that takes `least_seconds` once."""
    steps = first
    while (seconds := time(steps)) < least_seconds:
        growth = min(_LARGEST_GROWTH, max(2.0, _SLACK * least_seconds / max(seconds, 1e-9)))
        steps = _lengthen(steps, unit, growth)
    return steps


def choose_block_length(
    time: Timed, unit: int, least_seconds: float, task: str = TRAIN
) -> tuple[int, list[float], bool]:
    """Return the block length with a least duration of at least `least_seconds`, and what `settle` returns.

    Steps get faster during warm-up, and another program may slow most of it down. So check the fastest of the settled
    blocks, and search on if it is too short.
    """
    first = unit
    while True:
        steps = find_block_length(time, unit, least_seconds, first)
        part = shorten(steps, unit, least_seconds, task)
        blocks, steady = settle(time, part)
        seconds = min(blocks) * steps / part
        if seconds >= least_seconds:
            return steps, blocks, steady
        first = _lengthen(steps, unit, _SLACK * least_seconds / seconds)


def shorten(steps: int, unit: int, seconds: float, task: str = TRAIN) -> int:
    """Return the steps of a warm-up's block, a multiple of `unit`, where timed blocks of `steps` last `seconds`."""
    return unit * max(1, int(steps * min(1.0, _BLOCK_SECONDS[task] / seconds)) // unit)


def settle(time: Timed, steps: int) -> tuple[list[float], bool]:
    """Time blocks of `steps` until the last 16 show no change point, or the last 12 if they last 1.2 s. 64 at most.

    A change counts if it is significant and shifts the median by at least 1 %. A change point shows more than a spread
    (Barrett et al., "Virtual machine warmup blows hot and cold", OOPSLA 2017). Return the seconds of every block, and
    whether they have settled.
    """
    blocks: list[float] = []
    while len(blocks) < _LIMIT:
        blocks.append(time(steps))
        is_short = sum(blocks[-_SHORT_TAIL:]) >= _SHORT_SECONDS
        tail, significant = (_SHORT_TAIL, _SHORT_SIGNIFICANT) if is_short else (_TAIL, _SIGNIFICANT)
        if len(blocks) >= tail:
            change = change_point(blocks[-tail:])
            if change.probability > significant or abs(change.shift) < _SHIFT:
                return blocks, True
    return blocks, False


def _lengthen(steps: int, unit: int, growth: float) -> int:
    return unit * max(steps // unit + 1, int(steps * growth) // unit)
