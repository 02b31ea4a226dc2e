"""The rules by which a claim is reproduced or not, at their edges."""

from typing import Any

import pytest

from compare.base.typed_json import read
from compare.reproduce import claims, training_claims
from compare.reproduce.claims import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED
from compare.results.model import Comparison, Interval, from_json
from tests.unit.result_factory import make_comparison, make_contender, make_result


def comparison(**changes: Any) -> Comparison:
    return read(Comparison, make_comparison(**changes))


def compared(verdict: str, estimate: float, low: float, high: float) -> Comparison:
    ratio = {"estimate": estimate, "low": low, "high": high, "confidence": 0.95}
    return comparison(verdict=verdict, ratio=ratio)


FASTER = compared("FASTER", 0.70, 0.69, 0.71)


@pytest.mark.parametrize(
    ("here", "outcome", "reason"),
    [
        (FASTER, REPRODUCED, "the same verdict"),
        (compared("FASTER", 0.72, 0.71, 0.73), REPRODUCED, "do not exclude"),  # they touch
        (compared("FASTER", 0.73, 0.7101, 0.75), NOT_REPRODUCED, "the intervals exclude each other"),
        (compared("FASTER", 0.67, 0.65, 0.6899), NOT_REPRODUCED, "the intervals exclude each other"),
        (compared("FASTER", 0.7069, 0.71001, 0.7101), REPRODUCED, "the same"),  # apart by less than the margin
        (compared("SLOWER", 1.4, 1.3, 1.5), NOT_REPRODUCED, "contradicts the verdict"),
        (compared("EQUIVALENT", 1.0, 0.995, 1.005), NOT_REPRODUCED, "contradicts the verdict"),
        (compared("INCONCLUSIVE", 0.8, 0.6, 1.1), INCONCLUSIVE, "this run decided nothing"),
        (compared("INCONCLUSIVE", 1.2, 0.9, 1.6), NOT_REPRODUCED, "the intervals exclude each other"),
        (comparison(verdict="INCONCLUSIVE", ratio=None), INCONCLUSIVE, "too few rounds count"),
        (
            comparison(verdict="INVALID", reason="no agreement: x"),
            INCONCLUSIVE,
            "no speed may be claimed here: no",
        ),
        (None, INCONCLUSIVE, "they were not compared here"),
    ],
)
def test_what_becomes_of_faster(here: Comparison | None, outcome: str, reason: str) -> None:
    found = claims.judge_speed(FASTER, here)
    assert found[0] == outcome
    assert reason in found[1]


@pytest.mark.parametrize(
    ("stored", "here", "outcome"),
    [
        ("SLOWER", "SLOWER", REPRODUCED),
        ("EQUIVALENT", "EQUIVALENT", REPRODUCED),
        ("SLOWER", "FASTER", NOT_REPRODUCED),
        ("EQUIVALENT", "SLOWER", NOT_REPRODUCED),
        ("INCONCLUSIVE", "INCONCLUSIVE", INCONCLUSIVE),
        ("EQUIVALENT", "INCONCLUSIVE", INCONCLUSIVE),
        ("INCONCLUSIVE", "FASTER", NOT_REPRODUCED),  # its interval holds 1, the other lies far below
    ],
)
def test_every_other_verdict(stored: str, here: str, outcome: str) -> None:
    assert claims.judge_speed(comparison(verdict=stored), comparison(verdict=here))[0] == outcome


def test_a_run_that_decided_nothing_cannot_be_reproduced_even_where_another_decides() -> None:
    stored, here = compared("INCONCLUSIVE", 0.8, 0.6, 1.1), compared("FASTER", 0.8, 0.7, 0.9)
    assert claims.judge_speed(stored, here) == (INCONCLUSIVE, "the stored run decided nothing")


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("no agreement with torch: step1/logits (e64 2.0e-03)", REPRODUCED),
        ("jax failed (oom): training: out of memory", INCONCLUSIVE),
    ],
)
def test_invalid_comes_again_for_its_own_reason_only(reason: str, outcome: str) -> None:
    stored = comparison(verdict="INVALID", reason="no agreement with torch: step1/logits (e64 1.0e-03)")
    assert claims.judge_speed(stored, comparison(verdict="INVALID", reason=reason))[0] == outcome
    assert claims.judge_speed(stored, FASTER)[0] == NOT_REPRODUCED


def test_a_run_that_decides_nothing_contradicts_no_invalid_claim() -> None:
    stored = comparison(verdict="INVALID", reason="no agreement with torch: step1/logits (e64 1.0e-03)")
    outcome, reason = claims.judge_speed(stored, compared("INCONCLUSIVE", 0.8, 0.6, 1.1))
    assert outcome == INCONCLUSIVE
    assert reason == f"this run decided nothing; the stored one was INVALID: {stored.reason}"


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ((0.70, 0.69, 0.71), (0.72, 0.71, 0.73), False),
        ((0.70, 0.69, 0.71), (0.72, 0.711, 0.73), True),
        ((0.70, 0.70, 0.70), (0.707, 0.707, 0.707), True),  # exactly the margin
        ((0.70, 0.70, 0.70), (0.7069, 0.7069, 0.7069), False),
        ((0.70, 0.60, 0.80), (0.79, 0.78, 0.81), False),
    ],
)
def test_two_intervals_exclude_each_other(a: Any, b: Any, apart: bool) -> None:
    one, other = Interval(a[0], a[1], a[2], 0.95), Interval(b[0], b[1], b[2], 0.95)
    assert claims.exclude_each_other(one, other, 0.01) == claims.exclude_each_other(other, one, 0.01) == apart


@pytest.mark.parametrize(
    ("stored", "here", "outcome"),
    [
        ("pass", "pass", REPRODUCED),
        ("fail", "fail", REPRODUCED),
        ("pass", "fail", NOT_REPRODUCED),
        ("fail", "pass", NOT_REPRODUCED),
        ("skipped", "pass", INCONCLUSIVE),
        ("pass", "skipped", INCONCLUSIVE),
    ],
)
def test_agreement(stored: str, here: str, outcome: str) -> None:
    assert claims.judge_agreement(stored, here)[0] == outcome


@pytest.mark.parametrize(
    ("here", "outcome"),
    [
        (0.98, REPRODUCED),
        (0.97, REPRODUCED),  # one point
        (0.99, REPRODUCED),
        (0.969, INCONCLUSIVE),  # of 360 images, 4 more are wrong: chance
        (0.95, INCONCLUSIVE),
        (0.90, NOT_REPRODUCED),
    ],
)
def test_one_accuracy(here: float, outcome: str) -> None:
    assert training_claims.judge_accuracy(0.98, here, 360, 0.95)[0] == outcome


def test_more_images_tell_more() -> None:
    assert training_claims.judge_accuracy(0.98, 0.96, 100, 0.95)[0] == INCONCLUSIVE
    assert training_claims.judge_accuracy(0.98, 0.96, 10_000, 0.95)[0] == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("here", "outcome"),
    [
        ([0.980, 0.981, 0.979], REPRODUCED),
        ([0.985, 0.986, 0.984], REPRODUCED),
        ([0.995, 0.996, 0.994], NOT_REPRODUCED),
        ([0.965, 0.966, 0.964], NOT_REPRODUCED),
        ([0.990, 1.000, 0.960], INCONCLUSIVE),
        ([0.980, 0.981], INCONCLUSIVE),
    ],
)
def test_accuracies_over_seeds(here: list[float], outcome: str) -> None:
    assert training_claims.judge_accuracies([0.980, 0.981, 0.979], here)[0] == outcome


@pytest.mark.parametrize(
    ("stored", "here", "spread", "outcome"),
    [
        (0.5, 0.5, 0.0, REPRODUCED),
        (0.5, 0.5049, 0.0, REPRODUCED),
        (0.5, 0.506, 0.0, NOT_REPRODUCED),
        (0.5, 0.506, 0.01, REPRODUCED),  # contenders that agree are 1 % apart: rounding may make 3 %
        (0.5, 0.516, 0.01, NOT_REPRODUCED),
        (None, None, 0.0, REPRODUCED),
        (None, 0.5, 0.0, NOT_REPRODUCED),
        (0.5, None, 0.0, NOT_REPRODUCED),
        (0.0, 0.0, 0.0, REPRODUCED),
    ],
)
def test_final_loss(stored: float | None, here: float | None, spread: float, outcome: str) -> None:
    assert training_claims.judge_final_loss(stored, here, spread)[0] == outcome


def judged(stored: dict[str, Any], result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    sides = from_json(stored), from_json(result)
    found = [*claims.judge(*sides), *training_claims.judge(*sides)]
    return {claim.subject: (claim.outcome, claim.reason) for claim in found}


def test_a_result_reproduces_itself() -> None:
    found = judged(make_result(), make_result())
    assert list(found) == [
        "jax against torch: speed",
        "jax against torch: agreement",
        *(f"{name}: {what}" for name in ("torch", "jax") for what in ("train accuracy", "test accuracy", "final loss")),
    ]
    assert {outcome for outcome, _ in found.values()} == {REPRODUCED}


@pytest.mark.parametrize(("key", "what"), [("data_sha256", "data"), ("weights_sha256", "initial weights")])
def test_other_data_or_weights_say_nothing_about_training(key: str, what: str) -> None:
    found = judged(make_result(), make_result(spec={key: "a" * 64}))
    assert found["torch: training"] == (INCONCLUSIVE, f"the {what} differ from those of the stored run")
    assert "torch: final loss" not in found
    assert found["jax against torch: speed"][0] == REPRODUCED


def test_the_spread_between_contenders_that_agree_widens_the_limit_of_the_loss() -> None:
    def trained(loss: float) -> dict[str, Any]:
        return {"training": {"loss": [loss], "train_accuracy": 0.9, "test_accuracy": 0.9}}

    stored = make_result(contenders=[make_contender("torch", **trained(0.5)), make_contender("jax", **trained(0.51))])
    here = make_result(contenders=[make_contender("torch", **trained(0.52)), make_contender("jax", **trained(0.52))])
    assert judged(stored, here)["torch: final loss"][0] == REPRODUCED
    for each in (stored, here):
        each["agreement"]["pairs"][0]["status"] = "skipped"
    assert judged(stored, here)["torch: final loss"][0] == NOT_REPRODUCED


def test_a_failure_comes_again_or_not() -> None:
    failed = make_contender("jax", status="oom", reason="out of memory", training=None, step_seconds=None)
    invalid = make_comparison(verdict="INVALID", ratio=None, reason="jax failed (oom): out of memory")
    result = make_result(contenders=[make_contender(), failed], comparisons=[invalid])
    assert judged(result, result)["jax: status"] == (REPRODUCED, "the same failure")
    assert judged(result, make_result())["jax: status"] == (NOT_REPRODUCED, "another status")
    found = judged(make_result(), result)
    assert found["jax: training"] == (INCONCLUSIVE, "it was not trained here: out of memory")
    assert found["jax against torch: speed"][0] == INCONCLUSIVE


def test_a_certificates_curves_and_accuracies_are_judged_over_steps_and_seeds() -> None:
    def certified(loss: float, accuracy: float) -> dict[str, Any]:
        result = make_result(comparisons=[])
        for name in ("torch", "jax"):
            result["agreement"]["accuracies"][name] = [accuracy, accuracy]
            curves = {"loss": [2.0, 1.0 + loss], "envelope": [1e-6, 1e-4]}
            result["agreement"]["trajectory"][name] = curves
        return result

    stored = certified(0.0, 0.98)
    assert {outcome for outcome, _ in judged(stored, certified(2.9e-4, 0.989)).values()} == {REPRODUCED}
    found = judged(stored, certified(3.1e-4, 0.96))
    assert found["torch: loss by step"][0] == found["torch: test accuracy"][0] == NOT_REPRODUCED
    assert "times the one-ulp envelope, limit 3" in found["torch: loss by step"][1]
