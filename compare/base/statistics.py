"""Ratios, intervals and verdicts from block times: pure functions, no input or output.

The round, one fresh process per contender, is the unit of replication. Blocks are not independent: those of one process
share its memory layout, kernel choice and clock state. Intervals over blocks would be too narrow.

Sources: Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013. Georges, Buytaert and Eeckhout,
"Statistically rigorous Java performance evaluation", OOPSLA 2007.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

OUTLIER_LIMIT = 5.0
"""Scaled median absolute deviations beyond which `outliers` flags a value."""

_MAD_TO_SIGMA = 1.482602218505602


@dataclass(frozen=True)
class Ratio:
    """A positive estimate with its two-sided interval, `low <= estimate <= high`.

    A ratio of `paired_ratio` has no unit. Above 1 the contender is slower than the baseline. A value of
    `geometric_interval` has the unit of its inputs. `confidence` is a fraction, for example 0.95.
    """

    estimate: float
    low: float
    high: float
    confidence: float


def estimate_paired_ratio(baseline: Sequence[float], contender: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Return how many times as long as the baseline the contender takes per step.

    Each round has d = ln(contender / baseline). The estimate is exp(mean d), the geometric mean ratio (Fleming and
    Wallace, CACM 29(3), 1986). The interval is Student's t interval of d over rounds, carried back by exp (Student,
    Biometrika 6, 1908). Pairing cancels the influences that both contenders of a round share.

    Args:
        baseline: [rounds] median block time of each round, seconds per step.
        contender: [rounds] the same of the contender, in the same order of rounds.
        confidence: coverage of the interval, between 0 and 1.

    Raises:
        ValueError: for fewer than two rounds, unequal numbers of rounds, a time that is not positive and finite, or
            a confidence outside (0, 1).
    """
    before, after = _logarithms("baseline", baseline), _logarithms("contender", contender)
    if before.size != after.size:
        raise ValueError(f"baseline has {before.size} rounds, contender {after.size}: they must be paired")
    return _exponential_interval(after - before, confidence)


def estimate_independent_ratio(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Return how many times as long as `before` steps take in `after`, for rounds of two separate runs.

    The rounds are not paired. The runs may differ in their number of rounds and in their spread. The interval is
    Welch's for the difference of mean ln(time), carried back by exp (Biometrika 34, 1947). Its degrees of freedom are
    Satterthwaite's (Biometrics Bulletin 2(6), 1946). It does not cover differences between runs, such as another day.

    Args:
        before: [rounds] median block time of each round of the first run, seconds per step.
        after: [rounds] the same of the second run.
        confidence: coverage of the interval, between 0 and 1.

    Raises:
        ValueError: as `geometric_interval`, for either run.
    """
    first, second = _logarithms("before", before), _logarithms("after", after)
    parts = [float(values.var(ddof=1)) / values.size for values in (first, second)]
    weights = [part**2 / (values.size - 1) for part, values in zip(parts, (first, second), strict=True)]
    freedom = sum(parts) ** 2 / sum(weights) if sum(weights) else 1.0  # no spread
    half = compute_critical_value(confidence, freedom) * math.sqrt(sum(parts))
    middle = float(second.mean() - first.mean())
    return Ratio(_exponential(middle), _exponential(middle - half), _exponential(middle + half), confidence)


def estimate_geometric_interval(values: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Return the geometric mean of per-round median block times with its Student t interval.

    The same arithmetic as `paired_ratio`, on ln(value) in place of ln(ratio), so that the quotient of two contenders'
    estimates is their paired ratio.

    Args:
        values: [rounds] median block time of each round, seconds per step.
        confidence: coverage of the interval, between 0 and 1.

    Raises:
        ValueError: for fewer than two values, one that is not positive and finite, or a confidence outside (0, 1).
    """
    return _exponential_interval(_logarithms("values", values), confidence)


def judge_ratio(ratio: Ratio, margin: float) -> str:
    """Return FASTER, SLOWER, EQUIVALENT or INCONCLUSIVE for a ratio of contender over baseline.

    FASTER and SLOWER: the interval excludes 1, and the estimate is at most 1 / (1 + margin) or at least 1 + margin.
    EQUIVALENT: the interval lies inside [1 / (1 + margin), 1 + margin] (Schuirmann's two one-sided tests, J.
    Pharmacokinetics and Biopharmaceutics 15, 1987, made stricter: their interval at level a covers 1 - 2a, ours
    1 - a). INCONCLUSIVE: neither. An interval of no width exactly on the margin fulfils both. It is FASTER or SLOWER,
    because a difference as large as the margin counts as one.

    Args:
        ratio: from `paired_ratio`.
        margin: smallest relative difference that matters, 0.01 for one percent; 0 or more.

    Raises:
        ValueError: for a margin that is negative or not finite, or a ratio that is not low <= estimate <= high.
    """
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin is {margin}; allowed: 0 or more, finite")
    if not 0 <= ratio.low <= ratio.estimate <= ratio.high < math.inf:
        raise ValueError(f"not an interval around its estimate: {ratio}")
    fast, slow = 1 / (1 + margin), 1 + margin
    if ratio.high < 1 and ratio.estimate <= fast:
        return "FASTER"
    if ratio.low > 1 and ratio.estimate >= slow:
        return "SLOWER"
    if fast <= ratio.low and ratio.high <= slow:
        return "EQUIVALENT"
    return "INCONCLUSIVE"


def estimate_equivalence(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval that two one-sided tests (TOST) judge by: two means are equivalent if it is inside a margin.

    It is the mean of paired `differences` plus and minus Student's one-sided t at level 1 - confidence (Schuirmann
    1987). At 95 % confidence this is the ordinary 90 % interval.
    """
    values = _finite("differences", differences, 2)
    half = compute_critical_value(2 * confidence - 1, values.size - 1) * _standard_error(values)
    return float(values.mean()) - half, float(values.mean()) + half


def estimate_detectable_effect(differences: Sequence[float], confidence: float = 0.95, power: float = 0.8) -> float:
    """Return the smallest relative slowdown that this many rounds, spread like this, would have detected.

    At this effect the paired two-sided t test finds the slowdown with probability `power`. The effect is
    d = nc * s / sqrt(rounds), where s is the observed standard deviation of the differences. The noncentral t with
    noncentrality nc exceeds the critical value with that probability (Cohen, Statistical Power Analysis, 2nd edition,
    1988, chapter 2). Its normal approximation would be too hopeful for few rounds. The verdict's margin plays no role:
    an effect below the margin may be detectable and still not be SLOWER.

    Args:
        differences: [rounds] ln(contender / baseline) of each round.
        confidence: that of the interval, between 0 and 1.
        power: probability of detection, between 0 and 1; at least (1 - confidence) / 2.

    Returns:
        exp(d) - 1, for example 0.02 for two percent; 0 when the differences do not vary.

    Raises:
        ValueError: for fewer than two differences, one that is not finite, or a confidence or power out of range.
    """
    values = _finite("differences", differences, 2)
    critical = compute_critical_value(confidence, values.size - 1)
    if not (1 - confidence) / 2 <= power < 1:
        raise ValueError(f"power is {power}; allowed: from (1 - confidence) / 2 to below 1")
    noncentrality = float(_special().nctdtrinc(values.size - 1, 1 - power, critical))
    return _exponential(noncentrality * _standard_error(values)) - 1


@dataclass(frozen=True)
class Change:
    """Where a series changes its level most: before `index`, by the relative `shift` of the median.

    `probability` is that of a change so clear in a series without any.
    """

    index: int
    probability: float
    shift: float


def change_point(values: Sequence[float]) -> Change:
    """Return the most likely change of level in a series, by ranks, so that single wild values do not matter.

    U(t) counts the pairs across t that fall, minus those that rise. The change is at the t with the largest |U|. Its
    probability is 2 exp(-6 U^2 / (n^3 + n^2)) (Pettitt, "A non-parametric approach to the change-point problem",
    Applied Statistics 28(2), 1979). A steady trend counts as a change, too. Fewer than eleven values can never give
    less than 0.05.

    Args:
        values: [n] in order of time, any unit, positive; at least two.

    Raises:
        ValueError: for fewer than two values, or one that is not positive and finite.
    """
    data = _logarithms("values", values)
    falls = np.sign(data[:, None] - data[None, :])
    sums = [int(falls[:index, index:].sum()) for index in range(1, data.size)]
    index = 1 + int(np.argmax(np.abs(sums)))
    most = abs(sums[index - 1])
    probability = min(1.0, 2 * math.exp(-6 * most**2 / (data.size**3 + data.size**2)))
    shift = math.expm1(float(np.median(data[index:]) - np.median(data[:index])))
    return Change(index, probability, shift)


def summarise(samples: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return `median`, `mean` and `iqr` (interquartile range) over all blocks of these rounds, in the samples' unit.

    Quartiles interpolate linearly (Hyndman and Fan, The American Statistician 50(4), 1996, type 7, numpy's default).

    Args:
        samples: [rounds][blocks] seconds per step; rounds may differ in their number of blocks.

    Raises:
        ValueError: for no sample at all, or one that is not finite.
    """
    blocks = _finite("samples", [value for part in samples for value in part], 1)
    lower, median, upper = (float(value) for value in np.quantile(blocks, (0.25, 0.5, 0.75)))
    return {"median": median, "mean": float(blocks.mean()), "iqr": upper - lower}


def find_outliers(values: Sequence[float]) -> list[int]:
    """Return the indices of values more than five scaled median absolute deviations from the median.

    For warnings only: no sample is ever dropped. The factor 1.4826 scales the deviation to a normal standard
    deviation (Rousseeuw and Croux, JASA 88, 1993). If more than half of the values are equal, the deviation is 0 and
    every other value is flagged. Leys et al. recommend the rule (J. Experimental Social Psychology 49, 2013).

    Args:
        values: [n] any unit; fewer than three values have no outliers.

    Raises:
        ValueError: for a value that is not finite.
    """
    if len(values) == 0:
        return []
    data = _finite("values", values, 1)
    distance = np.abs(data - np.median(data))
    flagged = distance > OUTLIER_LIMIT * _MAD_TO_SIGMA * np.median(distance)
    return [int(index) for index in np.flatnonzero(flagged)]


def _finite(name: str, values: Sequence[float], least: int) -> NDArray[np.float64]:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size < least:
        raise ValueError(f"{name} has shape {list(data.shape)}; needed: a flat sequence of at least {least}")
    bad = np.flatnonzero(~np.isfinite(data))
    if bad.size:
        raise ValueError(f"{name}[{bad[0]}] is {data[bad[0]]}; allowed: finite numbers")
    return data


def _logarithms(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    data = _finite(name, values, 2)
    bad = np.flatnonzero(data <= 0)
    if bad.size:
        raise ValueError(f"{name}[{bad[0]}] is {data[bad[0]]}; allowed: positive times")
    return np.log(data)


def compute_critical_value(confidence: float, freedom: float) -> float:
    """Return the two-sided critical value of Student's t with so many degrees of freedom.

    Raises:
        ValueError: the confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; allowed: between 0 and 1, for example 0.95")
    return float(_special().stdtrit(freedom, (1 + confidence) / 2))


def _special() -> Any:
    # Here, because a child imports this module for its change points alone, and SciPy takes longer than all the rest.
    from scipy import special  # pyright: ignore[reportMissingTypeStubs]

    return special


def _standard_error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) / math.sqrt(values.size)


def _exponential(value: float) -> float:
    # Two wild rounds can put a bound beyond a double. A result file cannot hold infinity.
    return math.exp(min(value, math.log(sys.float_info.max)))


def _exponential_interval(values: NDArray[np.float64], confidence: float) -> Ratio:
    half = compute_critical_value(confidence, values.size - 1) * _standard_error(values)
    middle = float(values.mean())
    return Ratio(_exponential(middle), _exponential(middle - half), _exponential(middle + half), confidence)
