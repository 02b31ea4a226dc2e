"""Simulated runs that stop early: how often their verdicts are false, and how often their intervals miss."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

from compare.base import early_stopping
from compare.base.early_stopping import LOOKS
from compare.base.statistics import paired_ratio, verdict
from compare.settings.block_order import make_palindrome

RUNS = 20_000
MARGIN = 0.01


def simulate(
    ratio: float, spread: float, looks: Mapping[int, float], drift: float = 0.0
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """Return of each simulated run: does its interval cover the ratio, is its verdict false, how many rounds it took.

    `spread` is the standard deviation of a round's log-ratio. `drift` is the relative slowdown of the machine over a
    round, at each block of it. It differs from round to round, and grows over the run.
    """
    random = np.random.default_rng(round(1e6 * (ratio + spread + drift)))
    most = max(looks)
    rounds = math.log(ratio) + spread * random.standard_normal((RUNS, most))
    slower = drift * np.arange(1, most + 1) * random.uniform(0, 2, (RUNS, most))
    order = np.array(make_palindrome(2, 3))
    place = np.arange(order.size) / order.size
    # The median block of each side, where a block is as much slower as the machine has become until then.
    a, b = (np.median(slower[..., None] * place[order == side], axis=-1) for side in (0, 1))
    rounds += b - a
    covered, false, taken = np.zeros(RUNS, bool), np.zeros(RUNS, bool), np.zeros(RUNS, np.int64)
    running = np.ones(RUNS, bool)
    for look, error in looks.items():
        seen = rounds[:, :look]
        middle = seen.mean(axis=1)
        half = special.stdtrit(look - 1, 1 - error / 2) * seen.std(axis=1, ddof=1) / math.sqrt(look)
        low, high = middle - half, middle + half
        limit = math.log1p(MARGIN)
        differs = ((high < 0) & (middle <= -limit)) | ((low > 0) & (middle >= limit))
        equal = (low >= -limit) & (high <= limit)
        stops = running & (differs | equal | (look == most))
        covered[stops] = ((low <= math.log(ratio)) & (math.log(ratio) <= high))[stops]
        if ratio == 1:
            false[stops] = differs[stops]
        taken[stops] = look
        running &= ~stops
    return covered, false, taken


CELLS = [(ratio, spread) for ratio in (1.0, 1.01, 1.03, 1.1, 4.0) for spread in (0.002, 0.005, 0.02)]


@pytest.mark.parametrize(("ratio", "spread"), CELLS)
@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_a_run_that_stops_early_keeps_its_error(ratio: float, spread: float, drift: float):
    covered, false, _ = simulate(ratio, spread, LOOKS, drift)
    assert covered.mean() >= 0.947
    assert false.mean() <= 0.053


def test_looks_that_spend_the_whole_error_each_are_found_out():
    covered, false, _ = simulate(1.0, 0.02, dict.fromkeys(LOOKS, 0.05))
    assert covered.mean() < 0.947
    assert false.mean() > 0.053


def test_a_clear_difference_stops_at_the_first_look_and_a_small_one_goes_on():
    assert simulate(4.0, 0.005, LOOKS)[2].mean() == 3
    assert 3 < simulate(1.03, 0.005, LOOKS)[2].mean() < 6
    assert simulate(1.0, 0.02, LOOKS)[2].mean() > 9


def test_the_errors_of_the_looks_add_up_to_five_percent():
    assert math.fsum(LOOKS.values()) == pytest.approx(0.05, abs=1e-12)
    assert [early_stopping.confidence(rounds) for rounds in (2, 3, 4, 5, 6, 10)] == pytest.approx(
        [0.996, 0.996, 0.989, 0.989, 0.965, 0.965]
    )
    with pytest.raises(ValueError, match="at most 10"):
        early_stopping.confidence(11)


def test_the_simulated_rule_is_the_one_that_runs_use():
    random = np.random.default_rng(0)
    for _ in range(200):
        a, b = np.exp(0.01 * random.standard_normal((2, 5)))
        interval = paired_ratio(a, 1.02 * b, early_stopping.confidence(5))
        differences = np.log(1.02 * b / a)
        half = special.stdtrit(4, 1 - LOOKS[5] / 2) * differences.std(ddof=1) / math.sqrt(5)
        assert math.log(interval.high) == pytest.approx(differences.mean() + half)
        certain = verdict(interval, MARGIN) != "INCONCLUSIVE"
        assert early_stopping.is_final(5, [verdict(interval, MARGIN)]) == certain


@pytest.mark.parametrize(
    ("rounds", "verdicts", "stops"),
    [
        (2, ["FASTER"], False),
        (3, ["FASTER"], True),
        (3, ["FASTER", "INCONCLUSIVE"], False),
        (3, ["FASTER", "INVALID"], True),
        (3, [], True),
        (4, ["FASTER"], False),
        (5, ["EQUIVALENT", "SLOWER"], True),
        (10, ["INCONCLUSIVE"], True),
    ],
)
def test_a_run_stops_at_a_look_where_every_verdict_is_certain(rounds: int, verdicts: list[str], stops: bool):
    assert early_stopping.is_final(rounds, verdicts) is stops
