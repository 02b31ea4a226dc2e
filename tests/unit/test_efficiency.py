"""Efficiencies of a scaling are those by hand and by SciPy. A run may have none, and contradictions are refused."""

import functools
import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from compare.base import typed_json
from compare.results import model, verdicts
from compare.studies import efficiency
from compare.studies.scaling_model import Scaling
from tests.unit.result_factory import make_contender, make_result

Result = dict[str, Any]
FIRST, SECOND = [0.010, 0.011, 0.009], [0.0125, 0.0130, 0.0128]


def complete(result: Result) -> Result:
    return model.to_json(verdicts.complete_result(model.from_json(result)))


def make_run(devices: int, batch_size: int, *times: list[float], **overrides: Any) -> Result:
    """Return the result of contenders with these step times of each round, on so many devices."""
    contenders = []
    for name, rounds in zip(("torch", "jax"), times, strict=True):
        each = make_contender(name)
        each["step_seconds"] |= {"samples": [[seconds] * 3 for seconds in rounds]}
        contenders.append(each)
    spec = {"devices": devices, "batch_size": batch_size, "rounds": len(times[0])}
    return complete(make_result(spec=spec, contenders=contenders, **overrides))


def weak(**overrides: Any) -> list[Result]:
    return [make_run(1, 64, FIRST, FIRST), make_run(2, 128, SECOND, FIRST, **overrides)]


def listed(runs: list[Result], mode: str = "weak") -> list[Result]:
    return entries(runs, ("ddp", "sharded"), mode)


def entries(runs: list[Result], ways: tuple[str, ...], mode: str) -> list[Result]:
    return typed_json.write(efficiency.make_entries([model.from_json(run) for run in runs], ways, mode))


def faults(whole: Result) -> list[str]:
    return list(efficiency.find_faults(typed_json.read(Scaling, whole)))


def scaling(runs: list[Result]) -> Result:
    """Return the object of a weak scaling."""
    first, devices = runs[0], [run["spec"]["devices"] for run in runs]
    keys = ("workload", "contenders", "rotation", "batch_norm", "precision", "device", "rounds", "seed", "epochs")
    spec = {key: first["spec"][key] for key in (*keys, "confidence")}
    return {
        **{key: first[key] for key in ("schema_version", "id", "created", "command", "environment")},
        "kind": "scaling",
        "spec": {**spec, "devices": devices, "devices_requested": devices, "mode": "weak", "batch_size": 64},
        "runs": [
            {
                "devices": run["spec"]["devices"],
                "batch_size": run["spec"]["batch_size"],
                "file": "result.json",
                "sha256": "0" * 64,
                **{key: run[key] for key in ("agreement", "comparisons", "voided")},
            }
            for run in runs
        ],
        "scaling": listed(runs),
    }


def test_efficiency_by_hand() -> None:
    # ln: means ln 2, ln 2.5; variances 0, 0.02 (differences of 0.1 about the mean), each over 2: t(0.975, 1) = 12.7062
    more = [2.5 * math.exp(0.1), 2.5 * math.exp(-0.1)]
    found = efficiency.compute_efficiency([2.0, 2.0], more, 1.0)
    assert found.estimate == pytest.approx(0.8, rel=1e-12)
    assert math.log(found.high / 0.8) == pytest.approx(12.7062 * 0.1, rel=1e-5)
    assert math.log(found.low / 0.8) == pytest.approx(-12.7062 * 0.1, rel=1e-5)
    # The same batch on four devices takes 0.4 of the time: 2.5 times as fast on 4 times as many.
    assert efficiency.compute_efficiency([1.0, 1.0], [0.4, 0.4], 1 / 4).estimate == pytest.approx(0.625)


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_is_that_of_scipys_unequal_variances(confidence: float) -> None:
    generator = np.random.default_rng(5)
    fewest, more = list(generator.lognormal(0.0, 0.02, 10)), list(generator.lognormal(0.1, 0.2, 7))
    found = efficiency.compute_efficiency(fewest, more, 0.5, confidence)
    expected = stats.ttest_ind(np.log(fewest), np.log(more), equal_var=False).confidence_interval(confidence)
    assert np.log([found.low / 0.5, found.high / 0.5]) == pytest.approx([expected.low, expected.high], rel=1e-9)
    assert found.confidence == confidence


@pytest.mark.parametrize("worth", [0.0, -1.0, math.nan])
def test_a_worth_that_is_none_is_refused(worth: float) -> None:
    with pytest.raises(ValueError, match="allowed: above 0"):
        efficiency.compute_efficiency([1.0, 1.0], [1.0, 1.0], worth)


def test_nine_of_ten_intervals_cover_the_true_efficiency() -> None:
    generator = np.random.default_rng(11)
    runs = zip(generator.lognormal(0, 0.03, (1000, 5)), generator.lognormal(0.2, 0.06, (1000, 5)), strict=True)
    found = [efficiency.compute_efficiency(list(a), list(b), 1.0, 0.9) for a, b in runs]
    covered = sum(each.low <= math.exp(-0.2) <= each.high for each in found)
    assert 870 <= covered <= 930  # Binomial(1000, 0.9): standard deviation 9.5


def test_weak_scaling_holds_step_times_against_each_other() -> None:
    a1, a2, b1, b2 = listed(weak())
    assert [(each["contender"], each["devices"], each["parallel"]) for each in (a1, a2, b1, b2)] == [
        ("torch", 1, "ddp"),
        ("torch", 2, "ddp"),
        ("jax", 1, "sharded"),
        ("jax", 2, "sharded"),
    ]
    assert a1["efficiency"] == {"estimate": 1.0, "low": 1.0, "high": 1.0, "confidence": 0.95}
    assert a2["efficiency"]["estimate"] == pytest.approx(stats.gmean(FIRST) / stats.gmean(SECOND))
    assert a2["efficiency"]["estimate"] == pytest.approx(a2["images_per_second"] / (2 * a1["images_per_second"]))
    assert b2["efficiency"]["estimate"] == pytest.approx(1.0)
    assert b2["efficiency"]["low"] < 1 < b2["efficiency"]["high"]
    assert (a2["batch_size"], a2["mode"]) == (128, "weak")


def test_strong_scaling_is_the_speed_up_over_the_devices() -> None:
    runs = [make_run(2, 64, FIRST, FIRST), make_run(6, 64, SECOND, [each / 3 for each in FIRST])]
    _, a, b1, b = listed(runs, "strong")
    assert b["efficiency"]["estimate"] == pytest.approx(1.0)  # three times as fast on three times as many
    assert a["efficiency"]["estimate"] == pytest.approx(stats.gmean(FIRST) / stats.gmean(SECOND) / 3)
    assert b["efficiency"]["estimate"] == pytest.approx(b["images_per_second"] / (3 * b1["images_per_second"]))


def test_void_rounds_do_not_count() -> None:
    runs = [make_run(1, 64, FIRST, FIRST), make_run(2, 128, [*SECOND, 9.0], [*FIRST, 9.0])]
    runs[1] = complete({**runs[1], "voided": [{"round": 4, "reason": "x"}]})
    assert listed(runs)[1]["efficiency"] == listed(weak())[1]["efficiency"]
    void = [{"round": number, "reason": "x"} for number in (1, 2)]
    assert listed(weak(voided=void))[1]["absent"]["efficiency"] == "too few rounds on 2 devices that are not void"


def test_a_failure_takes_its_own_efficiency_only() -> None:
    runs = weak()
    runs[1]["contenders"][0] |= {"status": "oom", "reason": "8 GiB", "step_seconds": None, "images_per_second": None}
    _, a, _, b = listed(runs)
    assert (a["efficiency"], a["status"], a["absent"]["efficiency"]) == (None, "oom", "oom on 2 devices")
    assert b["efficiency"]["estimate"] == pytest.approx(1.0)
    assert "efficiency" not in b["absent"]


def test_without_the_fewest_devices_there_is_nothing_to_hold_against() -> None:
    runs = weak()
    runs[0]["contenders"][1] |= {"status": "crash", "reason": "x", "step_seconds": None, "images_per_second": None}
    *_, first, second = listed(runs)
    assert first["absent"]["efficiency"] == second["absent"]["efficiency"] == "crash on 1 device"
    assert second["efficiency"] is None
    assert second["images_per_second"] is not None


def test_no_efficiency_without_agreement_or_proof() -> None:
    runs = weak()
    runs[1]["agreement"]["pairs"][0]["status"] = "fail"
    assert [each["agreement"] for each in listed(runs)] == ["pass", "fail", "pass", "fail"]
    assert listed(runs)[3]["absent"]["efficiency"] == "no agreement on 2 devices"
    runs = weak()
    runs[0]["contenders"][1]["unproven"] = "the loss is not finite"
    assert "on 1 device it did not do the work" in listed(runs)[3]["absent"]["efficiency"]
    assert listed(runs)[1]["efficiency"] is not None
    runs = weak()
    runs[0]["agreement"]["pairs"] = []  # the partner failed before its certificate
    assert listed(runs)[0]["agreement"] == "skipped"
    assert [each["absent"]["efficiency"] for each in listed(runs)] == ["no certificate on 1 device"] * 4


def test_a_partner_that_differs_takes_nothing_from_a_baseline_that_agrees_with_another() -> None:
    run = make_run(1, 64, FIRST, FIRST)
    run["contenders"].append(make_contender("third"))
    passed = run["agreement"]["pairs"][0]
    run["agreement"]["pairs"].append({**passed, "contender": "third", "status": "fail"})
    found = entries([run], ("ddp", "sharded", "ddp"), "weak")
    assert [each["agreement"] for each in found] == ["pass", "pass", "fail"]
    passed["status"] = "skipped"
    found = entries([run], ("ddp", "sharded", "ddp"), "weak")
    assert [each["agreement"] for each in found] == ["fail", "skipped", "fail"]


def test_memory_and_communication_say_why_they_are_absent() -> None:
    runs = weak()
    runs[0]["contenders"][0]["memory"] |= {"live_peak_bytes": None, "absent": {"live_peak_bytes": "no statistics"}}
    runs[0]["contenders"][1]["memory"] = None
    a1, a2, b1, _ = listed(runs)
    assert (a1["memory_per_device_bytes"], a1["absent"]["memory_per_device_bytes"]) == (None, "no statistics")
    assert b1["absent"]["memory_per_device_bytes"] == "memory was not measured"
    assert a2["memory_per_device_bytes"] == 12 * 2**20
    assert a2["communication_seconds"] is None
    assert a2["absent"] == {"communication_seconds": "not measured"}


FAULTS: list[tuple[list[Any], Any, str]] = [
    (["scaling", 1, "efficiency", "low"], 0.5, "scaling[1].efficiency is {"),
    (["scaling", 3, "efficiency"], None, "scaling[3].efficiency is None"),
    (["scaling", 1, "step_seconds", "samples", 0], [1.0], "scaling[1].efficiency"),
    (["scaling", 0, "status"], "crash", "scaling[0].efficiency"),
    (["scaling", 0, "devices"], 3, "scaling is not of spec.contenders"),
    (["runs", 0, "devices"], 3, "runs are not those of spec.devices"),
    (["runs", 1, "voided"], [{"round": 1, "reason": "x"}], "scaling[1].efficiency"),
    (["scaling", 1, "images_per_second"], 1e9, "scaling[1].images_per_second is 1000000000.0; allowed by what else"),
    (["scaling", 2, "images_per_second"], None, "scaling[2].images_per_second is None"),
    (["scaling", 1, "parallel"], "sharded", "scaling[1].parallel is sharded; allowed by what else the file says: ddp"),
    (["scaling", 1, "mode"], "strong", "scaling[1].mode is strong"),
    (["scaling", 1, "batch_size"], 64, "scaling[1].batch_size is 64; allowed by what else the file says: 128"),
    (["spec", "mode"], "strong", "scaling[0].mode is weak"),
]


@pytest.mark.parametrize(("path", "value", "said"), FAULTS)
def test_what_contradicts_itself_is_named(path: list[Any], value: Any, said: str) -> None:
    whole = scaling(weak())
    assert faults(whole) == []
    *above, last = path
    functools.reduce(lambda part, key: part[key], above, whole)[last] = value
    assert faults(whole)[0].startswith(said)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("torch:stock+ddp", "ddp"),
        ("jax:tuned+sharded#2", "sharded"),
        ("jax:parallel=pmap", "pmap"),
        ("jax:pmap", "pmap"),
        ("jax:tuned+pmap#2", "pmap"),
        ("pmap", None),
        ("jax:stock", None),
    ],
)
def test_the_way_is_that_of_the_contender_s_name(name: str, way: str | None) -> None:
    whole = json.loads(json.dumps(scaling(weak())).replace('"jax"', json.dumps(name)))
    assert faults(whole) == (
        []
        if way in ("sharded", None)
        else [f"scaling[{index}].parallel is sharded; allowed by what else the file says: {way}" for index in (2, 3)]
    )
