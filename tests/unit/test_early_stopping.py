"""Simulated runs that stop early: how often their verdicts are false, and how often their intervals miss."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

from compare.base import early_stopping
from compare.base.early_stopping import GATE_LOOKS, LOOKS, explain_stop
from compare.base.statistics import Ratio, estimate_paired_ratio, judge_ratio
from compare.execution.simulation import stop_early
from compare.reproduce import regression

Looks = Mapping[int, float]

MARGIN, LIMIT = 0.01, 0.03
RULES = [(LOOKS, None), (GATE_LOOKS, LIMIT)]

CELLS = [(ratio, spread) for ratio in (1.0, 1.01, 1.03, 1.1, 4.0) for spread in (0.002, 0.005, 0.02)]


@pytest.mark.parametrize(("ratio", "spread"), CELLS)
@pytest.mark.parametrize("drift", [0.0, 0.05])
@pytest.mark.parametrize(("looks", "limit"), RULES)
def test_a_run_that_stops_early_keeps_its_error(
    ratio: float, spread: float, drift: float, looks: Looks, limit: float | None
):
    runs = stop_early(ratio, spread, drift=drift, looks=looks, limit=limit)
    assert runs.covered.mean() >= 0.947
    assert runs.false.mean() <= 0.053


def test_looks_that_spend_the_whole_error_each_are_found_out():
    runs = stop_early(1.0, 0.02, looks=dict.fromkeys(LOOKS, 0.05))
    assert runs.covered.mean() < 0.947
    assert runs.false.mean() > 0.053


@pytest.mark.parametrize("spread", [0.025, 0.04])
def test_a_gate_that_waits_while_its_ratio_is_near_the_limit_errs_less(spread: float):
    alarms, found = (stop_early(ratio, spread, looks=GATE_LOOKS, limit=LIMIT) for ratio in (1.0, 1.05))
    assert alarms.find_failures(LIMIT).mean() < 0.0025
    assert found.find_failures(LIMIT).mean() > 0.975
    assert alarms.rounds.mean() < 11.5
    noisy_alarms, noisy_found = (stop_early(ratio, 0.04).find_failures(LIMIT).mean() for ratio in (1.0, 1.05))
    assert noisy_alarms > 0.008
    assert noisy_found < 0.9


def test_a_clear_difference_stops_at_the_first_look_and_a_small_one_goes_on():
    assert stop_early(4.0, 0.005).rounds.mean() == 3
    assert 3 < stop_early(1.03, 0.005).rounds.mean() < 6
    assert stop_early(1.0, 0.02).rounds.mean() > 9


def test_the_errors_of_the_looks_add_up_to_five_percent():
    for looks, _ in RULES:
        assert math.fsum(looks.values()) == pytest.approx(0.05, abs=1e-12)
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
        assert (explain_stop(5, [interval], [judge_ratio(interval, MARGIN)]) is not None) == certain


@pytest.mark.parametrize("ratio", [1.0, 1.02, 1.05])
def test_the_simulated_gate_is_the_one_that_runs_use(ratio: float):
    random, rounds, failed = np.random.default_rng(1), list[int](), list[bool]()
    for _ in range(2000):
        ratios: list[float] = (ratio * np.exp(0.03 * random.standard_normal(20))).tolist()
        for look in GATE_LOOKS:
            confidence = early_stopping.compute_confidence(look, GATE_LOOKS)
            interval = estimate_paired_ratio([1.0] * look, ratios[:look], confidence)
            if explain_stop(look, [interval], [judge_ratio(interval, MARGIN)], GATE_LOOKS, LIMIT):
                rounds.append(look)
                failed.append(regression.judge_ratio(interval, LIMIT) == regression.REGRESSION)
                break
    simulated = stop_early(ratio, 0.03, looks=GATE_LOOKS, limit=LIMIT)
    assert simulated.rounds.mean() == pytest.approx(np.mean(rounds), abs=0.5)
    assert simulated.find_failures(LIMIT).mean() == pytest.approx(np.mean(failed), abs=0.03)


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
    assert (explain_stop(rounds, [], verdicts) is not None) is stops


FAR, NEAR, ABOVE = Ratio(1.01, 0.98, 1.04, 0.98), Ratio(1.04, 1.01, 1.07, 0.98), Ratio(1.06, 1.04, 1.08, 0.98)
BELOW = Ratio(1.02, 1.015, 1.025, 0.98)


@pytest.mark.parametrize(
    ("rounds", "ratio", "reason"),
    [
        (3, FAR, None),  # its verdict is open
        (10, FAR, "the ratio was clear of the limit of 3 %"),
        (3, NEAR, None),  # its verdict is certain
        (10, NEAR, None),
        (11, NEAR, None),
        (20, NEAR, "the maximum of 20 rounds was reached"),
        (3, ABOVE, "the ratio was clear of the limit of 3 %"),
        (5, BELOW, "the ratio was clear of the limit of 3 %"),
    ],
)
def test_a_gate_goes_on_while_the_ratio_is_near_its_limit(rounds: int, ratio: Ratio, reason: str | None):
    assert explain_stop(rounds, [ratio], [judge_ratio(ratio, MARGIN)], GATE_LOOKS, LIMIT) == reason
