"""Search for the largest or smallest number that fits. Pure functions of a yes-or-no question.

Both assume that a smaller number fits if a larger one does. An allocator may break that, if it rounds a larger request
better. The search then still ends at two neighbours: one that was seen to fit, and one that was not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

RESOLUTION = 0.01
"""`find_largest` ends when its bracket is narrower than this, relative to the lower end."""

PRECISION = 0.02
"""`find_smallest` ends when its bracket is at most this wide, relative to the lower end."""


@dataclass(frozen=True)
class Bracket:
    """The nearest tried values on both sides of an edge. None means that no tried value fits, or fails."""

    fits: int | None
    fails: int | None

    @property
    def exact(self) -> bool:
        """Whether the two values are neighbours."""
        return self.fits is not None and self.fails == self.fits + 1


def find_largest(fits: Callable[[int], bool], *, least: int, most: int, first: int) -> Bracket:
    """Return the bracket of the largest whole number from `least` to `most` that fits.

    Start at `first`. Double it until a number does not fit or `most` does, or halve it until a number fits or `least`
    does not. Then halve the bracket until its ends are neighbours, or closer than 1 % of the lower end. That takes at
    most about |log2(answer / first)| + 8 questions.
    """
    low, high = None, first
    while fits(high):
        if high == most:
            return Bracket(high, None)
        low, high = high, min(2 * high, most)
    while low is None:
        if high == least:
            return Bracket(None, high)
        below = max(high // 2, least)
        low, high = (below, high) if fits(below) else (None, below)
    while high - low > 1 and high - low >= RESOLUTION * low:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Bracket(low, high)


def find_smallest(fits: Callable[[int], bool], *, least: int, most: int, step: int) -> Bracket:
    """Return the bracket of the smallest whole number above `least` and up to `most` that fits.

    Start at `most`, and assume that `least` does not fit. Halve the bracket's logarithm until its ends are at most
    `step`, or 2 % of the lower end, apart. That takes about log2(50 ln(most / least)) questions.
    """
    if not fits(most):
        return Bracket(None, most)
    low, high = least, most
    while high - low > max(step, PRECISION * low):
        middle = max(low + 1, isqrt(low * high))
        low, high = (low, middle) if fits(middle) else (middle, high)
    return Bracket(high, low)
