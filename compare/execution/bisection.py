"""Searches for the edge between what fits and what does not: pure functions of a yes-or-no question.

Both take it that whatever is smaller than something that fits, fits too. Where that does not hold (an allocator may
round a larger request more kindly), they still end at two neighbours of which one was seen to fit and one not to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

RESOLUTION = 0.01
"""`largest` ends where what fits and what does not are closer than this, relative to what fits."""

PRECISION = 0.02
"""`smallest` ends where the two are at most this far apart, relative to what does not fit."""


@dataclass(frozen=True)
class Bracket:
    """Where an edge lies: `fits` and `fails` are the tried values nearest to it (None: no tried value did)."""

    fits: int | None
    fails: int | None

    @property
    def exact(self) -> bool:
        """Whether nothing lies between the two."""
        return self.fits is not None and self.fails == self.fits + 1


def largest(fits: Callable[[int], bool], *, least: int, most: int, first: int) -> Bracket:
    """Return the bracket of the largest whole number from `least` to `most` that fits.

    Asks `first`, which lies between the two, then doubles until a number does not fit or `most` does, or halves until
    one fits or `least` does not. Then it halves the bracket until its ends are neighbours (`exact`) or less than 1 % of
    the lower end apart: at most about |log2(answer / first)| + 8 questions.
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


def smallest(fits: Callable[[int], bool], *, least: int, most: int, step: int) -> Bracket:
    """Return the bracket of the smallest whole number above `least` and up to `most` that fits.

    Asks `most` first, takes it that `least` does not fit, and halves the bracket's logarithm until its ends are at most
    2 % of the lower end, or `step`, apart: about log2(50 ln(most / least)) questions.
    """
    if not fits(most):
        return Bracket(None, most)
    low, high = least, most
    while high - low > max(step, PRECISION * low):
        middle = max(low + 1, isqrt(low * high))
        low, high = (low, middle) if fits(middle) else (middle, high)
    return Bracket(high, low)
