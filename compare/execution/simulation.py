"""Simulate rounds of two contenders with known times, to check the statistics."""

import math
from dataclasses import dataclass
from statistics import median

import numpy as np

from compare.base import statistics
from compare.base.statistics import Ratio
from compare.settings.block_order import make_palindrome, order_contenders

PALINDROMES = 3


@dataclass(frozen=True)
class Machine:
    """How times scatter on a machine.

    Attributes:
        launch_noise: the standard deviation of ln(speed) from process to process.
        step_noise: the standard deviation of ln(time) from block to block.
        drift: the relative slowdown of the machine from the first block of a run to the last.
    """

    launch_noise: float = 0.005
    step_noise: float = 0.01
    drift: float = 0.0


def trial(generator: np.random.Generator, machine: Machine, *, rounds: int, slowdown: float = 0.0) -> Ratio:
    """Return the measured ratio of a contender that is slower than the baseline by `slowdown` (0.01 is 1 %).

    The blocks have the order of a real run. The median block of each round goes into `statistics.paired_ratio`.
    """
    medians: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        sides = order_contenders((0, 1), number)
        order = [sides[place] for place in make_palindrome(2, PALINDROMES)]
        launch = np.exp(generator.normal(0, machine.launch_noise, 2)) * (1.0, 1.0 + slowdown)
        passed = number + np.arange(len(order)) / len(order)
        noise = np.exp(generator.normal(0, machine.step_noise, len(order)))
        times = launch[order] * noise * (1 + machine.drift * passed / rounds)
        for side in sides:
            medians[side].append(median(float(t) for t, who in zip(times, order, strict=True) if who == side))
    return statistics.paired_ratio(*medians)


def count_significant(machine: Machine, *, trials: int, rounds: int, slowdown: float = 0.0, seed: int = 0) -> int:
    """Return the number of runs, out of `trials`, with an interval that excludes a ratio of 1."""
    return sum(not each.low <= 1 <= each.high for each in _trials(machine, trials, rounds, slowdown, seed))


def count_covered(machine: Machine, *, trials: int, rounds: int, slowdown: float, seed: int = 0) -> int:
    """Return the number of runs, out of `trials`, with an interval that contains the true ratio."""
    return sum(each.low <= 1 + slowdown <= each.high for each in _trials(machine, trials, rounds, slowdown, seed))


def _trials(machine: Machine, trials: int, rounds: int, slowdown: float, seed: int) -> list[Ratio]:
    generator = np.random.default_rng([seed, rounds, math.floor(1e6 * slowdown)])
    return [trial(generator, machine, rounds=rounds, slowdown=slowdown) for _ in range(trials)]
