"""Simulated runs that stop early: how often their verdicts are false, and how often their intervals miss."""

import math

import numpy as np
import pytest
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

from compare.base import early_stopping
from compare.base.early_stopping import LOOKS
from compare.base.statistics import estimate_paired_ratio, judge_ratio
from compare.execution.simulation import stop_early

MARGIN = 0.01


CELLS = [(ratio, spread) for ratio in (1.0, 1.01, 1.03, 1.1, 4.0) for spread in (0.002, 0.005, 0.02)]


@pytest.mark.parametrize(("ratio", "spread"), CELLS)
@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_a_run_that_stops_early_keeps_its_error(ratio: float, spread: float, drift: float):
    runs = stop_early(ratio, spread, drift=drift)
    assert runs.covered.mean() >= 0.947
    assert runs.false.mean() <= 0.053


def test_looks_that_spend_the_whole_error_each_are_found_out():
    runs = stop_early(1.0, 0.02, looks=dict.fromkeys(LOOKS, 0.05))
    assert runs.covered.mean() < 0.947
    assert runs.false.mean() > 0.053


def test_a_clear_difference_stops_at_the_first_look_and_a_small_one_goes_on():
    assert stop_early(4.0, 0.005).rounds.mean() == 3
    assert 3 < stop_early(1.03, 0.005).rounds.mean() < 6
    assert stop_early(1.0, 0.02).rounds.mean() > 9


def test_the_errors_of_the_looks_add_up_to_five_percent():
    assert math.fsum(LOOKS.values()) == pytest.approx(0.05, abs=1e-12)
    assert [early_stopping.compute_confidence(rounds) for rounds in (2, 3, 4, 5, 6, 10)] == pytest.approx(
        [0.996, 0.996, 0.989, 0.989, 0.965, 0.965]
    )
    with pytest.raises(ValueError, match="at most 10"):
        early_stopping.compute_confidence(11)


def test_the_simulated_rule_is_the_one_that_runs_use():
    random = np.random.default_rng(0)
    for _ in range(200):
        a, b = np.exp(0.01 * random.standard_normal((2, 5)))
        interval = estimate_paired_ratio(a, 1.02 * b, early_stopping.compute_confidence(5))
        differences = np.log(1.02 * b / a)
        half = special.stdtrit(4, 1 - LOOKS[5] / 2) * differences.std(ddof=1) / math.sqrt(5)
        assert math.log(interval.high) == pytest.approx(differences.mean() + half)
        certain = judge_ratio(interval, MARGIN) != "INCONCLUSIVE"
        assert early_stopping.is_final(5, [judge_ratio(interval, MARGIN)]) == certain


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
