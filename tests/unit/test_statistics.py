import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from compare.base.statistics import (
    Ratio,
    estimate_detectable_effect,
    estimate_geometric_interval,
    estimate_independent_ratio,
    estimate_paired_ratio,
    find_outliers,
    judge_ratio,
    summarise,
)


def test_ratio_by_hand() -> None:
    # d = ln 1.2, ln 1.1, ln 1.3: mean 0.179999, standard deviation 0.083551; t(0.975, 2) = 4.302653
    ratio = estimate_paired_ratio([1.0, 2.0, 4.0], [1.2, 2.2, 5.2])
    assert ratio.estimate == pytest.approx((1.2 * 1.1 * 1.3) ** (1 / 3), rel=1e-14)
    half = 4.302653 * 0.083551 / math.sqrt(3)
    assert math.log(ratio.low) == pytest.approx(0.179999 - half, abs=2e-6)
    assert math.log(ratio.high) == pytest.approx(0.179999 + half, abs=2e-6)
    assert ratio.confidence == 0.95


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_ratio_interval_is_that_of_scipy(confidence: float) -> None:
    generator = np.random.default_rng(1)
    baseline, contender = generator.lognormal(0.0, 0.1, (2, 10))
    ratio = estimate_paired_ratio(baseline, contender, confidence)
    expected = stats.ttest_1samp(np.log(contender / baseline), 0).confidence_interval(confidence)
    assert np.log([ratio.low, ratio.high]) == pytest.approx([expected.low, expected.high], rel=1e-9)


def test_ratio_is_above_one_for_a_slower_contender_and_inverts() -> None:
    forward, backward = estimate_paired_ratio([1.0, 1.1], [2.0, 2.1]), estimate_paired_ratio([2.0, 2.1], [1.0, 1.1])
    assert forward.estimate > 1
    assert (backward.estimate, backward.low, backward.high) == pytest.approx(
        (1 / forward.estimate, 1 / forward.high, 1 / forward.low)
    )


@pytest.mark.parametrize("sizes", [(10, 10), (5, 20), (2, 3)])
def test_the_interval_of_separate_runs_is_that_of_scipy(sizes: tuple[int, int]) -> None:
    generator = np.random.default_rng(3)
    before, after = (list(generator.lognormal(*shape)) for shape in ((0.0, 0.1, sizes[0]), (0.1, 0.02, sizes[1])))
    ratio = estimate_independent_ratio(before, after, 0.9)
    expected = stats.ttest_ind(np.log(after), np.log(before), equal_var=False).confidence_interval(0.9)
    assert np.log([ratio.low, ratio.high]) == pytest.approx([expected.low, expected.high], rel=1e-9)
    assert ratio.estimate == pytest.approx(stats.gmean(after) / stats.gmean(before))
    assert ratio.confidence == 0.9


def test_separate_runs_without_spread_have_an_interval_without_width() -> None:
    ratio = estimate_independent_ratio([2.0, 2.0], [3.0, 3.0, 3.0])
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize(("before", "after"), [([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0]), ([1.0, 0.0], [1.0, 2.0])])
def test_separate_runs_are_refused_like_paired_ones(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match=r"needed: a flat sequence of at least 2|allowed: positive times"):
        estimate_independent_ratio(before, after)


def test_rounds_are_paired() -> None:
    # A machine twice as slow in every other round must not widen the interval.
    drift = [1.0, 2.0, 1.0, 2.0]
    ratio = estimate_paired_ratio(drift, [1.5 * time for time in drift])
    assert (ratio.low, ratio.high) == pytest.approx((1.5, 1.5))


def test_false_positive_rate_of_identical_contenders() -> None:
    generator = np.random.default_rng(7)
    runs = generator.lognormal(0.0, 0.05, (2000, 2, 10))
    excluded = sum(not (ratio.low <= 1 <= ratio.high) for ratio in (estimate_paired_ratio(*run) for run in runs))
    # Binomial(2000, 0.05): mean 100, standard deviation 9.7.
    assert 70 <= excluded <= 130
    claimed = [judge_ratio(estimate_paired_ratio(*run), 0.1) in ("FASTER", "SLOWER") for run in runs]
    assert sum(claimed) < excluded


@pytest.mark.parametrize(
    ("baseline", "contender", "named"),
    [
        ([1.0], [1.0], r"baseline has shape \[1\]"),
        ([], [], r"baseline has shape \[0\]"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], "baseline has 2 rounds, contender 3"),
        ([1.0, 0.0], [1.0, 2.0], r"baseline\[1\] is 0.0"),
        ([1.0, 2.0], [-1.0, 2.0], r"contender\[0\] is -1.0"),
        ([1.0, 2.0], [1.0, math.nan], r"contender\[1\] is nan"),
        ([math.inf, 2.0], [1.0, 2.0], r"baseline\[0\] is inf"),
    ],
)
def test_ratio_refuses(baseline: list[float], contender: list[float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        estimate_paired_ratio(baseline, contender)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, math.nan])
def test_confidence_out_of_range_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence is"):
        estimate_paired_ratio([1.0, 2.0], [1.0, 2.0], confidence)
    with pytest.raises(ValueError, match="confidence is"):
        estimate_detectable_effect([0.0, 1.0], confidence)


def test_bounds_beyond_a_double_stay_finite() -> None:
    ratio = estimate_paired_ratio([1.0, 1.0], [1.0, 100.0], 0.999)
    assert ratio.low == 0.0
    assert math.isfinite(ratio.high)
    assert math.isfinite(estimate_detectable_effect([0.0, 5.0], 0.999))


@pytest.mark.parametrize(
    ("estimate", "low", "high", "margin", "expected"),
    [
        (0.70, 0.69, 0.71, 0.01, "FASTER"),
        (1.43, 1.40, 1.46, 0.01, "SLOWER"),
        (1.000, 0.995, 1.005, 0.01, "EQUIVALENT"),
        (1.005, 1.002, 1.008, 0.01, "EQUIVALENT"),  # excludes 1, but does not matter
        (1.005, 1.001, 1.02, 0.01, "INCONCLUSIVE"),  # excludes 1, may matter or not
        (1.30, 0.90, 1.88, 0.01, "INCONCLUSIVE"),
        (0.70, 0.48, 1.0, 0.01, "INCONCLUSIVE"),  # 1 itself is not excluded
        (1.43, 1.0, 2.04, 0.01, "INCONCLUSIVE"),
        (1 / 1.1, 0.90, 0.92, 0.1, "FASTER"),  # the margin is multiplicative: 1 / 1.1, not 0.9
        (0.915, 0.91, 0.92, 0.1, "EQUIVALENT"),
        (1.1, 1.0999, 1.1001, 0.1, "SLOWER"),
        (1.01, 1.01, 1.01, 0.01, "SLOWER"),  # both hold
        (1 / 1.01, 1 / 1.01, 1 / 1.01, 0.01, "FASTER"),  # both hold
        (1.0, 1 / 1.01, 1.01, 0.01, "EQUIVALENT"),  # bounds belong to the inside
        (1.0, 1.0, 1.0, 0.0, "EQUIVALENT"),
        (1.0001, 1.00005, 1.00015, 0.0, "SLOWER"),
    ],
)
def test_verdict(estimate: float, low: float, high: float, margin: float, expected: str) -> None:
    assert judge_ratio(Ratio(estimate, low, high, 0.95), margin) == expected


@pytest.mark.parametrize(
    ("ratio", "margin"),
    [
        (Ratio(1.0, 0.9, 1.1, 0.95), -0.01),
        (Ratio(1.0, 0.9, 1.1, 0.95), math.nan),
        (Ratio(math.nan, 0.9, 1.1, 0.95), 0.01),
        (Ratio(1.0, 1.1, 0.9, 0.95), 0.01),
    ],
)
def test_verdict_refuses(ratio: Ratio, margin: float) -> None:
    with pytest.raises(ValueError, match=r"margin is|not an interval"):
        judge_ratio(ratio, margin)


def test_geometric_intervals_divide_to_the_paired_ratio() -> None:
    baseline, contender = [1.0, 1.2, 1.1], [2.0, 2.1, 2.5]
    quotient = estimate_geometric_interval(contender).estimate / estimate_geometric_interval(baseline).estimate
    assert quotient == pytest.approx(estimate_paired_ratio(baseline, contender).estimate)
    expected = stats.ttest_1samp(np.log(baseline), 0).confidence_interval(0.9)
    interval = estimate_geometric_interval(baseline, 0.9)
    assert np.log([interval.low, interval.high]) == pytest.approx([expected.low, expected.high], rel=1e-9)


def test_detectable_effect_has_the_power_it_promises() -> None:
    generator = np.random.default_rng(3)
    # Differences with standard deviation exactly 0.02.
    template = np.asarray(stats.zscore(generator.normal(size=10), ddof=1)) * 0.02
    effect = math.log1p(estimate_detectable_effect(template.tolist(), 0.95, 0.8))
    trials = effect + 0.02 * generator.normal(size=(4000, 10))
    low = trials.mean(1) - stats.t.ppf(0.975, 9) * trials.std(1, ddof=1) / math.sqrt(10)
    assert np.mean(low > 0) == pytest.approx(0.8, abs=0.02)


def test_detectable_effect_shrinks_with_rounds_and_spread() -> None:
    spread = [-0.01, 0.01]
    assert estimate_detectable_effect(spread * 20) < estimate_detectable_effect(spread * 3)
    assert estimate_detectable_effect(spread * 5) < estimate_detectable_effect([-0.02, 0.02] * 5)
    assert estimate_detectable_effect(spread * 5, power=0.5) < estimate_detectable_effect(spread * 5, power=0.9)
    assert estimate_detectable_effect([0.1, 0.1, 0.1]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("power", [0.0, 0.01, 1.0, math.nan])
def test_detectable_effect_refuses_power(power: float) -> None:
    with pytest.raises(ValueError, match="power is"):
        estimate_detectable_effect([0.0, 0.1], 0.95, power)


def test_summary_of_all_blocks_of_unequal_rounds() -> None:
    assert summarise([[1.0, 2.0], [3.0, 4.0, 10.0]]) == {"median": 3.0, "mean": 4.0, "iqr": 2.0}
    assert summarise([[5.0]]) == {"median": 5.0, "mean": 5.0, "iqr": 0.0}


@pytest.mark.parametrize("samples", [[], [[]], [[1.0, math.nan]]])
def test_summary_refuses(samples: Any) -> None:
    with pytest.raises(ValueError, match="samples"):
        summarise(samples)


def test_outliers() -> None:
    # median 3, absolute deviations 2 1 0 1 2 ..: their median is 1, the limit 5 * 1.4826 = 7.413
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert find_outliers(values) == []
    assert find_outliers([1.0, 2.0, 3.0, 4.0, 10.41]) == []
    assert find_outliers([1.0, 2.0, 3.0, 4.0, 10.42]) == [4]
    assert find_outliers([-10.0, 2.0, 3.0, 4.0, 5.0]) == [0]
    assert find_outliers([7.0, 7.0, 7.1, 7.0]) == [2]
    assert find_outliers([]) == find_outliers([1.0]) == find_outliers([1.0, 9.0]) == []
