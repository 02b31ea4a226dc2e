"""Whether what a stored result claims holds in a run that repeated it: status, speed and agreement. Pure functions.

A claim of speed is a verdict and a ratio with its interval. It is

- REPRODUCED, where the new verdict is the same and the intervals do not exclude each other, or both are INVALID for the
  same reason;
- NOT REPRODUCED, where the new verdict is another decided one (of an INVALID one, any), or the intervals exclude each
  other;
- INCONCLUSIVE else: one of the runs decided nothing, or the new one may claim nothing.

Two intervals exclude each other where one lies wholly above the other and their estimates differ by at least the
margin. That is `compare.base.statistics.verdict`'s own rule for one interval and 1, and as there, a difference below the
margin does not count. Two 95 % intervals without a common point are stronger evidence than a test at 5 % asks for
(Schenker and Gentleman, "On judging the significance of differences by examining the overlap between confidence
intervals", The American Statistician 55(3), 2001), so that NOT REPRODUCED is said with care. What differs from one day
or machine to another is in neither interval: the differences in environment are listed for that reason.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compare.base import typed_json
from compare.base.statistics import Ratio
from compare.report.sentences import ratio_text

Object = Mapping[str, Any]
Judged = tuple[str, str]
"""An outcome and its reason."""

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "REPRODUCED", "NOT REPRODUCED", "INCONCLUSIVE"

_DECIDED = ("FASTER", "SLOWER", "EQUIVALENT")


@dataclass(frozen=True)
class Claim:
    """What a stored result says of `subject`, what the new run says, and whether the one is reproduced by the other."""

    subject: str
    stored: str
    here: str
    outcome: str
    reason: str


def judge(stored: Object, result: Object) -> Iterator[Claim]:
    """Yield a claim for each contender that failed, each comparison, and each pair that was certified."""
    now = {each["name"]: each for each in result["contenders"]}
    for each in stored["contenders"]:
        if each["status"] != "ok":
            here = now[each["name"]]["status"]
            judged = (REPRODUCED, "it failed alike") if here == each["status"] else (NOT_REPRODUCED, "another status")
            yield Claim(f"{each['name']}: status", each["status"], here, *judged)
    compared = {_pair(each): each for each in result["comparisons"]}
    for each in stored["comparisons"]:
        here = compared.get(_pair(each))
        yield Claim(f"{_pair(each)}: speed", _told(each), _told(here), *speed(each, here))
    certified = {_pair(each): each for each in result["agreement"]["pairs"]}
    for each in stored["agreement"]["pairs"]:
        here = certified.get(_pair(each))
        status = here["status"] if here else "skipped"
        yield Claim(f"{_pair(each)}: agreement", each["status"], status, *agreement(each["status"], status))


def speed(stored: Object, here: Object | None) -> Judged:
    """Judge one comparison by the module's rule; `here` is None where it was not made."""
    if here is None:
        return INCONCLUSIVE, "they were not compared here"
    if stored["verdict"] == "INVALID":
        return _invalid(stored, here)
    if here["verdict"] == "INVALID":
        return INCONCLUSIVE, f"no speed may be claimed here: {here['reason']}"
    verdicts = stored["verdict"], here["verdict"]
    if all(each in _DECIDED for each in verdicts) and verdicts[0] != verdicts[1]:
        return NOT_REPRODUCED, "the verdict is contradicted"
    if stored["ratio"] is None or here["ratio"] is None:
        return INCONCLUSIVE, "too few rounds count to give an interval"
    if excluded(stored["ratio"], here["ratio"], stored["margin"]):
        return NOT_REPRODUCED, "the intervals exclude each other"
    if verdicts[0] == "INCONCLUSIVE":
        return INCONCLUSIVE, "the stored run decided nothing"
    if verdicts[1] == "INCONCLUSIVE":
        return INCONCLUSIVE, "this run decided nothing; more rounds may"
    return REPRODUCED, "the same verdict, and intervals that do not exclude each other"


def excluded(a: Object, b: Object, margin: float) -> bool:
    """Tell whether two ratios exclude each other: no common point, and estimates at least the margin apart."""
    apart = a["high"] < b["low"] or b["high"] < a["low"]
    low, high = sorted((a["estimate"], b["estimate"]))
    return apart and high >= low * (1 + margin)


def agreement(stored: str, here: str) -> Judged:
    """Judge the status of a pair's certificate, `pass`, `fail` or `skipped`."""
    if "skipped" in (stored, here):
        return INCONCLUSIVE, "there is no complete certificate on both sides"
    return (REPRODUCED, "the same status") if stored == here else (NOT_REPRODUCED, "another status")


def _invalid(stored: Object, here: Object) -> Judged:
    """Judge a comparison of which nothing could be claimed: only what kept it from that can come again."""
    if here["verdict"] == "INCONCLUSIVE":
        return INCONCLUSIVE, f"this run decided nothing; it was INVALID: {stored['reason']}"
    if here["verdict"] != "INVALID":
        return NOT_REPRODUCED, f"it was INVALID, but here nothing speaks against it; it was: {stored['reason']}"
    kinds = [each["reason"].partition(": ")[0] for each in (stored, here)]
    if kinds[0] == kinds[1]:
        return REPRODUCED, f"INVALID again: {here['reason']}"
    return INCONCLUSIVE, f"INVALID for another reason: {here['reason']}"


def _pair(each: Object) -> str:
    return f"{each['contender']} against {each['baseline']}"


def _told(comparison: Object | None) -> str:
    if comparison is None or comparison["verdict"] == "INVALID" or comparison["ratio"] is None:
        return comparison["verdict"] if comparison else "none"  # no ratio: it must not be read as a speed
    return f"{comparison['verdict']}, {ratio_text(typed_json.read(Ratio, comparison['ratio']))}"
