"""The order in which contenders' blocks are timed, and the GPUs that each round is timed on."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def order_contenders(contenders: Sequence[T], number: int) -> list[T]:
    """Return the contenders in the order of round `number`, counted from 0. Every other round reverses the order.

    The first contender of a round meets a rested device, and the second a device at its power limit. Over two rounds
    both have the same share of each. If rounds rotate over several GPUs, `number` counts the rotations.
    """
    return list(contenders if number % 2 == 0 else reversed(contenders))


def list_gpus_of_round(number: int, count: int, rotation: int) -> range | None:
    """Return the GPUs for contenders on `count` devices in round `number`. GPUs and rounds count from 0.

    Rounds rotate over `rotation` GPUs, in whole parts of `count`, because GPUs of one kind are not equally fast.
    Return None if all rounds are on the same GPUs.
    """
    if rotation == 1:
        return None
    first = number % count_parts(count, rotation) * count
    return range(first, first + count)


def count_parts(count: int, rotation: int) -> int:
    """Return how many whole groups of `count` GPUs fit into `rotation` GPUs, and at least 1."""
    return max(1, rotation // count)


def make_palindrome(contenders: int, repeats: int) -> list[int]:
    """Return contender indices as A B C C B A, `repeats` times. Each contender gets 2 * repeats blocks.

    A drift that is linear in time then affects all contenders equally.
    """
    forward = list(range(contenders))
    return [*forward, *reversed(forward)] * repeats
