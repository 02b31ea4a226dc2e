"""Judge whether a repeated run reproduces the claims of a stored result: status, speed and agreement. Pure functions.

A claim of speed is a verdict and a ratio with its interval. Its outcome is

- REPRODUCED, if the new verdict is the same and the intervals do not exclude each other, or if both are INVALID for the
  same reason;
- NOT REPRODUCED, if both verdicts are decided and differ, if the intervals exclude each other, or if the stored one is
  INVALID and the new one is decided;
- INCONCLUSIVE otherwise: one of the runs decided nothing, or the new one is INVALID.

Two intervals exclude each other if they share no point and their estimates differ by at least the margin. This is
the rule of `compare.base.statistics.judge_ratio` for an interval and 1. Two separate 95 % intervals are stronger
evidence than a test at 5 % needs, so NOT REPRODUCED is a careful statement. Source: Schenker and Gentleman, "On
judging the significance of differences by examining the overlap between confidence intervals", The American
Statistician 55(3), 2001. Neither interval covers changes from day to day or between machines. Therefore the report
lists all differences between the environments.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from compare.report.sentences import format_ratio
from compare.results.model import Comparison, Interval, Pair, Result

Judgement = tuple[str, str]
"""An outcome and its reason."""

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "REPRODUCED", "NOT REPRODUCED", "INCONCLUSIVE"

_DECIDED = ("FASTER", "SLOWER", "EQUIVALENT")


@dataclass(frozen=True)
class Claim:
    """One claim of a stored result.

    Attributes:
        subject: the contenders and the figure.
        stored: the stored figure.
        here: the new run's figure.
        outcome: REPRODUCED, NOT REPRODUCED or INCONCLUSIVE.
        reason: why.
    """

    subject: str
    stored: str
    here: str
    outcome: str
    reason: str


def judge(stored: Result, result: Result) -> Iterator[Claim]:
    """Yield a claim for each contender that failed, each comparison, and each certified pair."""
    statuses = {contender.name: contender.status for contender in result.contenders}
    for contender in stored.contenders:
        if contender.status != "ok":
            here = statuses[contender.name]
            same = here == contender.status
            judgement = (REPRODUCED, "the same failure") if same else (NOT_REPRODUCED, "another status")
            yield Claim(f"{contender.name}: status", contender.status, here, *judgement)
    comparisons = {_describe_pair(comparison): comparison for comparison in result.comparisons}
    for comparison in stored.comparisons:
        name = _describe_pair(comparison)
        new = comparisons.get(name)
        yield Claim(f"{name}: speed", _describe(comparison), _describe(new), *judge_speed(comparison, new))
    pair_statuses = {_describe_pair(pair): pair.status for pair in result.agreement.pairs}
    for pair in stored.agreement.pairs:
        name = _describe_pair(pair)
        status = pair_statuses.get(name, "skipped")
        yield Claim(f"{name}: agreement", pair.status, status, *judge_agreement(pair.status, status))


def judge_speed(stored: Comparison, here: Comparison | None) -> Judgement:
    """Judge one comparison by the module's rule. Without such a comparison in the new run, `here` is None."""
    if here is None:
        return INCONCLUSIVE, "they were not compared here"
    if stored.verdict == "INVALID":
        return _judge_invalid(stored, here)
    if here.verdict == "INVALID":
        return INCONCLUSIVE, f"no speed may be claimed here: {here.reason}"
    if stored.verdict in _DECIDED and here.verdict in _DECIDED and stored.verdict != here.verdict:
        return NOT_REPRODUCED, "this run contradicts the verdict"
    if stored.ratio is None or here.ratio is None:
        return INCONCLUSIVE, "too few rounds count for an interval"
    if exclude_each_other(stored.ratio, here.ratio, stored.margin):
        return NOT_REPRODUCED, "the intervals exclude each other"
    if stored.verdict == "INCONCLUSIVE":
        return INCONCLUSIVE, "the stored run decided nothing"
    if here.verdict == "INCONCLUSIVE":
        return INCONCLUSIVE, "this run decided nothing; more rounds may"
    return REPRODUCED, "the same verdict, and intervals that do not exclude each other"


def exclude_each_other(a: Interval, b: Interval, margin: float) -> bool:
    """Tell whether two ratios have no common point and estimates that differ by at least the margin."""
    separate = a.high < b.low or b.high < a.low
    low, high = sorted((a.estimate, b.estimate))
    return separate and high >= low * (1 + margin)


def judge_agreement(stored: str, here: str) -> Judgement:
    """Judge the status of a pair's certificate, `pass`, `fail` or `skipped`."""
    if "skipped" in (stored, here):
        return INCONCLUSIVE, "one of the runs has no complete certificate"
    return (REPRODUCED, "the same status") if stored == here else (NOT_REPRODUCED, "another status")


def _judge_invalid(stored: Comparison, here: Comparison) -> Judgement:
    """Judge a stored comparison that is INVALID: only its reason can come again."""
    if here.verdict == "INCONCLUSIVE":
        return INCONCLUSIVE, f"this run decided nothing; the stored one was INVALID: {stored.reason}"
    if here.verdict != "INVALID":
        return NOT_REPRODUCED, f"this run is valid; the stored one was INVALID: {stored.reason}"
    kinds = [(comparison.reason or "").partition(": ")[0] for comparison in (stored, here)]
    if kinds[0] == kinds[1]:
        return REPRODUCED, f"INVALID again: {here.reason}"
    return INCONCLUSIVE, f"INVALID for another reason: {here.reason}"


def _describe_pair(pair: Comparison | Pair) -> str:
    size = pair.batch_size if isinstance(pair, Comparison) else None
    return f"{pair.contender} against {pair.baseline}" + ("" if size is None else f" at batch {size}")


def _describe(comparison: Comparison | None) -> str:
    if comparison is None:
        return "none"
    if comparison.claimed_ratio is None:  # nothing that a reader may take for a speed
        return comparison.verdict
    return f"{comparison.verdict}, {format_ratio(comparison.claimed_ratio)}"
