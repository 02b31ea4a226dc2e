"""The order in which contenders' blocks are timed."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def in_turn(contenders: Sequence[T], number: int) -> list[T]:
    """Return the contenders of a round by its number, from 0: in every other one the last comes first.

    What comes first in a round meets a device that has rested, what comes second one that has just been brought to its
    limit of power: over two rounds that weighs on every contender alike. Where rounds go around on several devices, the
    number is that of the turn, so that it does on each.
    """
    return list(contenders if number % 2 == 0 else reversed(contenders))


def gpus_of_round(number: int, count: int, rotation: int) -> range | None:
    """Return the GPUs, counted from 0, on which contenders that train on `count` are timed in a round, from 0 on.

    Rounds go around on `rotation` GPUs, in whole parts of `count`: GPUs of one kind are not equally fast, and several
    that work together go at the pace of the slowest, whichever is the first. None where all rounds are on the same.
    """
    if rotation == 1:
        return None
    first = number % parts(count, rotation) * count
    return range(first, first + count)


def gpus_of_stored(spec: Mapping[str, Any], number: int) -> range | None:
    """Return the same of a round of a stored result by its spec, which of an older one says nothing of them."""
    return gpus_of_round(number, spec.get("devices", 1), spec.get("rotation", 1))


def parts(count: int, rotation: int) -> int:
    """Return how many whole parts of `count` GPUs there are in `rotation`, 1 at least."""
    return max(1, rotation // count)


def palindromic(contenders: int, repeats: int) -> list[int]:
    """Return contender indices as A B C C B A, `repeats` times: each gets 2 * repeats blocks.

    A drift that is linear in time then weighs on every contender alike, within each palindrome.
    """
    forward = list(range(contenders))
    return [*forward, *reversed(forward)] * repeats
