"""Simulate rounds of two contenders with known times, to check the statistics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from compare.base import statistics
from compare.base.early_stopping import LOOKS, MOST_ROUNDS
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


def run_trial(generator: np.random.Generator, machine: Machine, *, rounds: int, slowdown: float = 0.0) -> Ratio:
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
    return statistics.estimate_paired_ratio(*medians)


def count_significant(machine: Machine, *, trials: int, rounds: int, slowdown: float = 0.0) -> int:
    """Return how many of `trials` simulated runs of `rounds` rounds have an interval that excludes a ratio of 1."""
    return sum(not each.low <= 1 <= each.high for each in _trials(machine, trials, rounds, slowdown))


def count_covered(machine: Machine, *, trials: int, rounds: int, slowdown: float) -> int:
    """Return how many such runs have an interval that contains the true ratio, 1 + `slowdown`."""
    return sum(each.low <= 1 + slowdown <= each.high for each in _trials(machine, trials, rounds, slowdown))


def _trials(machine: Machine, trials: int, rounds: int, slowdown: float) -> list[Ratio]:
    generator = np.random.default_rng([0, rounds, math.floor(1e6 * slowdown)])
    return [run_trial(generator, machine, rounds=rounds, slowdown=slowdown) for _ in range(trials)]


_RUNS, _MARGIN = 20_000, 0.01
"""Runs that `stop_early` simulates, and the smallest relative difference that matters in them."""


@dataclass(frozen=True)
class EarlyStops:
    """Simulated runs that may stop early.

    Attributes:
        covered: [runs] whether the interval at the end contains the true ratio.
        false: [runs] whether the verdict is FASTER or SLOWER although the true ratio is 1.
        rounds: [runs] the rounds that each run took.
        estimate: [runs] the estimate of the ratio at the end.
        low: [runs] the lower end of its interval.
    """

    covered: NDArray[np.bool_]
    false: NDArray[np.bool_]
    rounds: NDArray[np.int64]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]

    def find_failures(self, limit: float) -> NDArray[np.bool_]:
        """Return [runs] whether a gate with this limit fails (`compare.reproduce.regression.judge_ratio`)."""
        return (self.low > 1) & (self.estimate > 1 + limit)


def stop_early(
    ratio: float,
    spread: float,
    *,
    drift: float = 0.0,
    looks: Mapping[int, float] = LOOKS,
    limit: float | None = None,
) -> EarlyStops:
    """Simulate 20,000 runs that stop at a look, by the rules of `statistics.judge_ratio` and `early_stopping`.

    Args:
        ratio: the true ratio.
        spread: the standard deviation of a round's log-ratio.
        drift: how much the machine slows down during a round, relatively. It varies from round to round and grows.
        looks: the error of the look after so many rounds.
        limit: the slowdown above which a run fails, as in `early_stopping.explain_stop`.
    """
    runs = _RUNS
    random = np.random.default_rng(round(1e6 * (ratio + spread + drift)))
    most = max(looks)
    rounds = math.log(ratio) + spread * random.standard_normal((runs, most))
    slower = drift * np.arange(1, most + 1) * random.uniform(0, 2, (runs, most))
    order = np.array(make_palindrome(2, PALINDROMES))
    place = np.arange(order.size) / order.size
    # Each side's median block is as much slower as the machine has become until then.
    a, b = (np.median(slower[..., None] * place[order == side], axis=-1) for side in (0, 1))
    rounds += b - a
    covered, false, taken = np.zeros(runs, bool), np.zeros(runs, bool), np.zeros(runs, np.int64)
    estimate, lowest = np.ones(runs), np.ones(runs)
    running, margin = np.ones(runs, bool), math.log1p(_MARGIN)
    for look, error in looks.items():
        seen = rounds[:, :look]
        middle = seen.mean(axis=1)
        half = statistics.compute_critical_value(1 - error, look - 1) * seen.std(axis=1, ddof=1) / math.sqrt(look)
        low, high = middle - half, middle + half
        differs = ((high < 0) & (middle <= -margin)) | ((low > 0) & (middle >= margin))
        equal = (low >= -margin) & (high <= margin)
        stops = differs | equal
        if limit is not None:
            is_clear = (low > math.log1p(limit)) | (high < math.log1p(limit)) | (middle < math.log1p(limit / 2))
            stops = is_clear & (stops | (look >= MOST_ROUNDS))
        stops = running & (stops | (look == most))
        covered[stops] = ((low <= math.log(ratio)) & (math.log(ratio) <= high))[stops]
        false[stops] = differs[stops] & (ratio == 1)
        taken[stops] = look
        estimate[stops], lowest[stops] = np.exp(middle[stops]), np.exp(low[stops])
        running &= ~stops
    return EarlyStops(covered, false, taken, estimate, lowest)
