"""The regression gate: what counts as slower, at its edges."""

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from compare.base.interface import Refused
from compare.base.statistics import Ratio
from compare.reproduce import regression
from compare.reproduce import regression_report as report
from compare.reproduce.regression import (
    IMPROVEMENT,
    INCONCLUSIVE,
    REGRESSION,
    UNCHANGED,
    Change,
)
from compare.results import model, verdicts
from compare.settings.kinds import Fraction
from compare.settings.options import SETTINGS
from tests.unit.result_factory import make_contender, make_result


def timed(name: str, seconds: float, noise: float = 0.0, seed: int = 0, rounds: int = 10) -> dict[str, Any]:
    made = make_contender(name, seconds)
    random = np.random.default_rng(seed)
    times = seconds * np.exp(random.normal(0, noise, rounds))
    made["step_seconds"]["samples"] = [[float(each)] * 3 for each in times]
    return made


def result(*contenders: Any) -> dict[str, Any]:
    result = model.from_json(make_result(contenders=list(contenders)))
    return model.to_json(verdicts.complete_result(result))


def find_changes(old: Any, new: Any, threshold: float = 0.03) -> dict[tuple[str, str], Change]:
    changes = regression.find_changes(model.from_json(old), model.from_json(new), threshold)
    return {(change.contender, change.figure): change for change in changes}


def other_work(old: Any, new: Any) -> list[str]:
    return regression.find_other_work(model.from_json(old), model.from_json(new))


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [
        ((1.05, 1.04, 1.06), REGRESSION),
        ((1.05, 1.001, 1.10), REGRESSION),
        ((1.05, 1.000, 1.10), INCONCLUSIVE),  # the interval holds 1
        ((1.05, 0.99, 1.11), INCONCLUSIVE),
        ((1.0301, 1.01, 1.05), REGRESSION),
        ((1.03, 1.03, 1.03), UNCHANGED),  # not above it
        ((1.02, 1.01, 1.03), UNCHANGED),
        ((1.02, 1.01, 1.031), INCONCLUSIVE),
        ((1.00, 0.98, 1.02), UNCHANGED),
        ((0.95, 0.94, 0.96), IMPROVEMENT),
        ((0.95, 0.90, 1.00), INCONCLUSIVE),
        ((0.98, 0.975, 0.985), UNCHANGED),
        ((0.97, 0.965, 0.975), IMPROVEMENT),
    ],
)
def test_an_outcome_needs_the_interval_and_the_threshold(ratio: tuple[float, float, float], outcome: str) -> None:
    assert regression.judge_ratio(Ratio(*ratio, 0.95), 0.03) == outcome


def test_a_threshold_of_nothing_fails_for_whatever_the_interval_shows() -> None:
    assert regression.judge_ratio(Ratio(1.001, 1.0005, 1.0015, 0.95), 0.0) == REGRESSION
    assert regression.judge_ratio(Ratio(1.001, 0.9995, 1.0025, 0.95), 0.0) == INCONCLUSIVE


@pytest.mark.parametrize(("factor", "outcome"), [(1.05, REGRESSION), (1.0, UNCHANGED), (0.9, IMPROVEMENT)])
def test_step_times_are_compared_over_rounds(factor: float, outcome: str) -> None:
    old, new = result(timed("torch", 2e-3, 0.005, 1)), result(timed("torch", factor * 2e-3, 0.005, 2))
    change = find_changes(old, new)["torch", "step time"]
    assert change.ratio is not None
    assert change.ratio.estimate == pytest.approx(factor, rel=0.01)
    assert change.before == pytest.approx(2e-3, rel=0.01)
    assert change.after == pytest.approx(2e-3 * factor, rel=0.01)
    assert change.outcome == outcome


@pytest.mark.parametrize(
    ("before", "after", "whose"),
    [
        ("once", "once", "OLD and NEW had one search for kernels each;"),
        ("once", "every round", "OLD had one search for kernels;"),
        (None, "once", "NEW had one search for kernels;"),
        ("every round", None, None),
    ],
)
def test_a_change_of_what_one_search_chose_is_told_so(before: str | None, after: str | None, whose: str | None) -> None:
    for factor, told in ((1.05, whose), (0.9, whose), (1.0, None)):
        old = result(timed("jax", 2e-3, 0.005, 1) | {"kernel_search": before})
        new = result(timed("jax", factor * 2e-3, 0.005, 2) | {"kernel_search": after})
        reason = find_changes(old, new)["jax", "step time"].reason
        assert reason is None if told is None else reason is not None and reason.startswith(told), factor


def test_a_noisy_machine_that_did_not_change_rarely_fails() -> None:
    fails = 0
    for seed in range(200):
        old, new = (result(timed("torch", 2e-3, 0.05, 2 * seed + side)) for side in (0, 1))
        fails += find_changes(old, new)["torch", "step time"].outcome == REGRESSION
    assert fails <= 15  # at a confidence of 95 %, a slowdown is seen in 2.5 % of them


def test_void_rounds_do_not_count_and_two_are_needed() -> None:
    old, new = result(timed("torch", 2e-3)), result(timed("torch", 2e-3, rounds=3))
    new["contenders"][0]["step_seconds"]["samples"][1] = [1.0, 1.0, 1.0]
    voided = [{"round": 2, "reason": "rain"}]
    assert find_changes(old, new)["torch", "step time"].outcome == INCONCLUSIVE
    assert find_changes(old, new | {"voided": voided})["torch", "step time"].outcome == UNCHANGED
    voided.append({"round": 3, "reason": "rain"})
    change = find_changes(old, new | {"voided": voided})["torch", "step time"]
    assert (change.outcome, change.reason) == (INCONCLUSIVE, "10 against 1 rounds count; needed: 2 and 2")


@pytest.mark.parametrize("whole", [0, 1])
def test_a_run_that_was_cut_off_decides_nothing_of_speed_on_either_side(whole: int) -> None:
    cut, complete = result(timed("torch", 2e-3, rounds=max(whole, 1))), result(timed("torch", 2e-3))
    cut["spec"] |= {"rounds": whole, "rounds_requested": 10}
    cut["contenders"][0] |= {} if whole else {"step_seconds": None, "images_per_second": None}
    for old, new in ((cut, complete), (complete, cut), (cut, cut)):
        assert find_changes(old, new)["torch", "step time"].outcome == INCONCLUSIVE
    cut["spec"]["rounds_requested"] = 0  # a certificate
    assert ("torch", "step time") not in find_changes(cut, cut) or whole


def memory(figures: dict[str, int | None]) -> dict[str, Any]:
    absent = {"live_peak_bytes": None, "pool_peak_bytes": None, "process_bytes": None, "static_bytes": None}
    return {"memory": {**absent, **figures, "absent": {}}}


@pytest.mark.parametrize(
    ("figure", "after", "outcome"),
    [
        ("live_peak_bytes", 104, REGRESSION),
        ("live_peak_bytes", 103, UNCHANGED),
        ("pool_peak_bytes", 90, IMPROVEMENT),
        ("static_bytes", 200, REGRESSION),
        ("process_bytes", 200, None),
    ],
)
def test_memory_that_is_counted_is_judged_and_the_process_is_told(figure: str, after: int, outcome: str | None) -> None:
    old, new = (result(timed("torch", 2e-3) | memory({figure: size})) for size in (100, after))
    change = find_changes(old, new)["torch", figure]
    assert (change.before, change.after, change.outcome) == (100, after, outcome)


@pytest.mark.parametrize("figure", [0, None, -5])
def test_memory_that_is_not_known_on_both_sides_is_left_out(figure: int | None) -> None:
    old, new = (result(timed("torch", 2e-3) | memory({"process_bytes": size})) for size in (100, figure))
    assert ("torch", "process_bytes") not in find_changes(old, new)


def test_a_contender_that_fails_by_now_is_a_regression() -> None:
    failed = make_contender("jax", status="oom", reason="out of memory", step_seconds=None, memory=None)
    old, new = result(timed("torch", 2e-3), timed("jax", 1e-3)), result(timed("torch", 2e-3), failed)
    change = find_changes(old, new)["jax", "status"]
    assert (change.before, change.after, change.outcome, change.reason) == ("ok", "oom", REGRESSION, "out of memory")
    assert find_changes(new, old)["jax", "status"].outcome == IMPROVEMENT
    assert find_changes(new, new)["jax", "status"].outcome == UNCHANGED


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ("pass", "fail", REGRESSION),
        ("fail", "pass", IMPROVEMENT),
        ("pass", "pass", UNCHANGED),
        ("pass", "skipped", REGRESSION),
        ("skipped", "pass", IMPROVEMENT),
        ("skipped", "skipped", None),
    ],
)
def test_an_agreement_that_is_lost_is_a_regression(before: str, after: str, outcome: str | None) -> None:
    old, new = (result(timed("torch", 2e-3), timed("jax", 1e-3)) for _ in range(2))
    old["agreement"]["status"], new["agreement"]["status"] = before, after
    change = find_changes(old, new).get(("", "agreement"))
    assert (change and change.outcome) == outcome


def test_no_speed_is_judged_of_what_was_not_proved_or_not_certified() -> None:
    slow, fast = (result(timed("torch", 2e-3), timed("jax", seconds)) for seconds in (2e-3, 1e-3))
    fast["contenders"][1]["unproven"] = "the work was not done"
    change = find_changes(slow, fast)["jax", "status"]
    assert (change.before, change.after, change.outcome) == ("ok", "unproven", REGRESSION)
    assert change.reason == "the work was not done"
    assert ("jax", "step time") not in find_changes(slow, fast)
    assert find_changes(fast, slow)["jax", "status"].outcome == INCONCLUSIVE
    fast["contenders"][1]["unproven"] = None
    assert find_changes(slow, fast)["jax", "step time"].outcome == IMPROVEMENT
    slow["agreement"]["status"] = "skipped"
    change = find_changes(slow, fast)["jax", "step time"]
    assert (change.outcome, change.reason) == (None, "a speed is judged only with agreement, which OLD lacks")


def test_step_times_that_are_gone_are_undecided() -> None:
    old, new = (result(timed("torch", 2e-3), timed("jax", 1e-3)) for _ in range(2))
    new["contenders"][1]["step_seconds"] = None
    change = find_changes(old, new)["jax", "step time"]
    assert (change.before, change.after, change.outcome) == (pytest.approx(1e-3), "not timed", INCONCLUSIVE)
    assert ("jax", "step time") not in find_changes(new, new)


def test_only_what_both_have_is_compared() -> None:
    old, new = result(timed("torch", 2e-3), timed("jax", 1e-3)), result(timed("jax", 1e-3), timed("torch:stock", 3e-3))
    assert {name for name, _ in find_changes(old, new)} == {"", "torch", "jax"}
    change = find_changes(old, new)["torch", "status"]
    assert (change.after, change.outcome, change.reason) == ("not there", INCONCLUSIVE, "in OLD only")
    with pytest.raises(Refused, match="no contender in common: torch, jax against torch:stock"):
        find_changes(old, result(timed("torch:stock", 1e-3)))


def test_nothing_to_compare_is_refused() -> None:
    bare = make_result(contenders=[make_contender("torch", step_seconds=None, memory=None)])
    bare["agreement"]["status"] = "skipped"
    with pytest.raises(Refused, match="nothing to compare for torch"):
        find_changes(bare, bare)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"workload": "cifar-cnn"}, "workload is digits-cnn against cifar-cnn"),
        ({"precision": "bfloat16"}, "precision is float32 against bfloat16"),
        ({"batch_size": 128}, "batch_size is 64 against 128"),
        ({"image": [9, 9, 1]}, "image is [8, 8, 1] against [9, 9, 1]"),
        ({"deterministic": True}, "deterministic is False against True"),
    ],
)
def test_other_work_is_named(spec: dict[str, Any], said: str) -> None:
    assert other_work(make_result(), make_result(spec=spec)) == [said]


def test_another_device_is_named_by_kind_and_by_name() -> None:
    other = make_result(environment={"cpu": {"model": "Another CPU"}})
    assert other_work(make_result(), other) == ["device's name is Example CPU against Another CPU"]
    assert other_work(make_result(), make_result(spec={"device": "cuda"}))[0] == "device is cpu against cuda"
    assert other_work(make_result(), make_result(spec={"seed": 7, "rounds": 3})) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3%", 0.03),
        ("3 %", 0.03),
        ("0.03", 0.03),
        ("0", 0.0),
        ("0%", 0.0),
        (".5%", 0.005),
        ("150%", 1.5),
        ("0.999", 0.999),
    ],
)
def test_a_threshold_is_a_percentage_or_a_fraction(text: str, value: float) -> None:
    SETTINGS["fail_above"].check(text)
    assert Fraction().read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "%", "3", "1", "-1%", "-0.03", "nan", "inf", "1e-2", "3%%", "three", "0x1", "٣%", "1" * 5_000]
)
def test_what_is_no_threshold_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"allowed: 3%, or a part below 1, as 0\.03"):
        SETTINGS["fail_above"].check(text)


@pytest.mark.parametrize(
    ("key", "value", "since"),
    [("accumulate", 2, 1), ("devices", 2, 1), ("rotation", 2, 1), ("machines", 2, 1), ("batch_norm", "local", "sync")],
)
def test_results_of_other_devices_are_not_of_the_same_work(key: str, value: Any, since: Any) -> None:
    one, other = make_result(), make_result(spec={key: value})
    assert other_work(one, other) == [f"{key} is {since} against {value}"]
    assert other_work(other, one) == [f"{key} is {value} against {since}"]
    assert other_work(other, other) == []


def test_a_change_that_rounds_to_none_has_no_sign() -> None:
    stream = io.StringIO()
    change = Change("jax", "process_bytes", 1.0, 1.0, Ratio(0.9999, 0.9999, 0.9999, 0.95), UNCHANGED)
    report.render([change], 0.03, [], Console(file=stream, width=200))
    assert "+0.0 %" in stream.getvalue()


def test_every_figure_is_told_in_its_unit_and_what_failed_or_is_undecided_last() -> None:
    changes = [
        Change("jax", "step time", 2.3456e-3, 2.5e-3, Ratio(1.0658, 1.05, 1.08, 0.95), REGRESSION),
        Change("torch", "step time", 0.25, 1.25, Ratio(5, 0.9, 9, 0.95), INCONCLUSIVE, "noise"),
        Change("torch", "live_peak_bytes", 3 * 2**20, 2**20, Ratio(1 / 3, 1 / 3, 1 / 3, 0.95), IMPROVEMENT),
        Change("torch", "step time", 2e-3, "not timed", None, INCONCLUSIVE),
    ]
    stream = io.StringIO()
    report.render(changes, 0.03, ["not the same work: seed"], Console(file=stream, width=200))
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert lines[2:6] == [
        "jax step time (ms) 2.346 2.5 +6.6 % +5.0 to +8.0 % REGRESSION",
        "torch step time (ms) 250 1,250 +400.0 % -10.0 to +800.0 % INCONCLUSIVE",
        "torch live peak (MiB) 3.0 1.0 -66.7 % IMPROVEMENT",
        "torch step time (ms) 2 not timed INCONCLUSIVE",
    ]
    assert lines[-3:] == [
        "torch step time: noise",
        "not the same work: seed",
        "regression above 3 %: jax step time; undecided: torch step time, torch step time",
    ]
