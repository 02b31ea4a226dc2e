"""The gates on made-up records: what fails, what passes, and which tensor is named."""

import math

import numpy as np
import pytest

from compare.agreement import certificate, effective_settings, gates, measures
from compare.agreement.floors import Noise
from compare.base.interface import Array, Arrays

NAMES = ("conv.kernel", "dense.kernel")


def record(dtype: str = "float64", noise: float = 0.0) -> Arrays:
    """Return two steps of a model of two layers in the order in which `compare.worker.recording` makes them."""
    random, errors = np.random.default_rng(0), np.random.default_rng(1)

    def draw() -> Array:
        exact = random.standard_normal((3, 4))
        return (exact * (1 + noise * errors.standard_normal((3, 4)))).astype(dtype)

    start = np.random.default_rng(2).standard_normal((3, 4)).astype(dtype)
    arrays: Arrays = {f"initial/{name}": start for name in (*NAMES, "norm.mean")}
    for step in (1, 2):
        keys = ["activation/conv", "activation/dense", "logits", "loss"]
        keys += [f"{kind}/{name}" for kind in ("gradient", "update") for name in NAMES]
        arrays |= {f"step{step}/{key}": draw() for key in keys}
        arrays[f"step{step}/buffer/norm.mean"] = start + draw()
    arrays["evaluation/logits"] = draw()
    return arrays | {f"delta/{name}": draw() for name in (*NAMES, "norm.mean")}


def pair(noise64: float = 1e-15, noise32: float = 1e-7) -> tuple[dict[str, Arrays], dict[str, Arrays]]:
    baseline = {"float64": record(), "float32": record("float32")}
    return baseline, {"float64": record(noise=noise64), "float32": record("float32", noise=noise32)}


def judged(baseline: dict[str, Arrays], contender: dict[str, Arrays]) -> certificate.Certificate:
    return certificate.judge(baseline, contender, "float64", Noise({}))


def test_rounding_passes_both_gates():
    found = judged(*pair())
    assert found.passed
    assert found.first_mismatch is None
    assert {gate.name for gate in found.gates} >= {"semantic", "scaling"}


def test_a_record_agrees_with_itself():
    baseline, _ = pair()
    found = judged(baseline, baseline)
    assert found.passed
    assert found.gates[0].value == 0
    assert found.gates[1].value is not None
    assert found.gates[1].value > 1e8


def test_a_semantic_difference_is_found_and_the_first_tensor_named():
    baseline, contender = pair()
    for precision in contender.values():
        for name in ("step1/gradient/conv.kernel", "step1/update/conv.kernel", "step2/logits"):
            precision[name] = precision[name] * 1.001
    found = judged(baseline, contender)
    assert {gate.name for gate in found.gates if not gate.passed} == {"semantic", "scaling"}
    assert found.first_mismatch is not None
    assert found.first_mismatch.startswith("step1/gradient/conv.kernel ")


@pytest.mark.parametrize(("error", "passes"), [(1e-13, True), (5e-12, False)])
def test_sides_that_round_alike_in_float32_are_held_to_what_float32_costs_each(error: float, passes: bool):
    baseline, contender = pair(noise64=error)
    baseline["float32"] = contender["float32"] = record("float32", noise=1e-6)
    found = judged(baseline, contender)
    assert (found.gates[0].passed, found.gates[1].passed) == (True, passes)
    assert {each.e32 for each in found.evidence} == {0.0}


def test_what_float32_costs_is_that_of_the_side_that_it_costs_less():
    baseline, contender = pair(noise64=1.5e-12)
    baseline["float32"], contender["float32"] = record("float32", noise=1e-6), record("float32", noise=2e-6)
    found = judged(baseline, contender)
    assert (found.gates[0].passed, found.gates[1].passed) == (True, False)


def test_a_change_larger_than_what_it_changes_is_resolved_to_one_roundoff():
    small, name = np.full(3, 1e-3), "step1/update/conv.bias"
    assert measures.compute_coarseness(name, {"initial/conv.bias": small, name: np.ones(3)}) == 1.0
    assert measures.compute_coarseness(name, {"initial/conv.bias": np.ones(3), name: small}) == pytest.approx(1e3)


@pytest.mark.parametrize(("moved", "passes"), [(0.0, True), (1e-17, True), (1e-3, False)])
@pytest.mark.parametrize("still", [0, 1], ids=["baseline", "contender"])
def test_a_change_too_small_to_be_stored_may_be_rounded_away_on_one_side(moved: float, passes: bool, still: int):
    sides, name = pair(), "step1/update/conv.kernel"
    for side, part in ((sides[still], 0.0), (sides[1 - still], moved)):
        side["float64"][name] = part * side["float64"]["initial/conv.kernel"]
        side["float32"][name] = np.zeros_like(side["float32"][name])
    is_small = passes or still == 0
    found = certificate.judge(
        *sides, "float64", Noise({name: 0.5 if is_small else 1e-16})
    )  # as measured of the baseline
    assert found.passed == passes
    assert passes or (found.first_mismatch or "").startswith(name)


@pytest.mark.parametrize(("error", "passes"), [(0.9e-10, True), (1.1e-10, False)])
def test_the_semantic_limit_is_1e_10(error: float, passes: bool):
    found = gates.judge_semantic({"a": 1e-16, "b": error})
    assert (found.value, found.passed, found.worst_tensor) == (error, passes, "b")


@pytest.mark.parametrize(("ratio", "passes"), [(1.1e6, True), (0.9e6, False)])
def test_the_scaling_limit_is_1e6(ratio: float, passes: bool):
    found = gates.judge_scaling({"a": 5e8, "b": ratio})
    assert (found.value, found.passed, found.worst_tensor) == (ratio, passes, "b")


def test_an_error_that_float32_shares_fails_by_scaling_alone():
    baseline, contender = pair()
    for precision, error in (("float64", 5e-11), ("float32", 1e-6)):
        name = "step2/activation/dense"
        contender[precision][name] = baseline[precision][name] * np.float32(1) * (1 + error)
        contender[precision][name] = contender[precision][name].astype(precision)
    found = judged(baseline, contender)
    (failed,) = [gate for gate in found.gates if not gate.passed]
    assert (failed.name, failed.worst_tensor) == ("scaling", "step2/activation/dense")
    assert (found.first_mismatch or "").startswith("step2/activation/dense ")


@pytest.mark.parametrize("side", ["baseline", "contender"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_fails_and_is_named(side: str, value: float):
    records: dict[str, dict[str, Arrays]] = dict(zip(("baseline", "contender"), pair(), strict=True))
    for name in ("step2/loss", "step1/gradient/dense.kernel"):
        changed = records[side]["float64"][name].copy()
        changed[0, 0] = value
        records[side]["float64"][name] = changed
    found = judged(records["baseline"], records["contender"])
    assert not found.passed
    assert found.first_mismatch == f"step1/gradient/dense.kernel is not finite in the {side}"
    assert [gate.value for gate in found.gates] == [None, None]


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("side", ["baseline", "contender"])
def test_a_missing_tensor_is_named(side: str, precision: str):
    records: dict[str, dict[str, Arrays]] = dict(zip(("baseline", "contender"), pair(), strict=True))
    del records[side][precision]["step1/buffer/norm.mean"]
    found = judged(records["baseline"], records["contender"])
    assert found.first_mismatch == f"step1/buffer/norm.mean is missing in the {side}"
    assert not found.passed


def test_a_shape_is_compared_before_arithmetic_could_broadcast():
    baseline, contender = pair()
    contender["float64"]["step1/logits"] = contender["float64"]["step1/logits"][:1]
    found = judged(baseline, contender)
    assert found.first_mismatch == "step1/logits has shape [3, 4] in the baseline, [1, 4] in the contender"


def test_a_dtype_is_compared():
    baseline, contender = pair()
    contender["float64"]["step1/loss"] = contender["float64"]["step1/loss"].astype(np.float32)
    assert (
        judged(baseline, contender).first_mismatch == "step1/loss is float64 in the baseline, float32 in the contender"
    )


def test_both_must_start_from_the_same_bits():
    baseline, contender = pair()
    start = contender["float64"]["initial/dense.kernel"].copy()
    start[0, 0] = np.nextafter(start[0, 0], 9)
    contender["float64"]["initial/dense.kernel"] = start
    assert (judged(baseline, contender).first_mismatch or "").startswith("initial/dense.kernel differs")


def test_buffers_are_compared_by_their_change():
    baseline, contender = {"initial/m": np.array([1e6]), "step1/buffer/m": np.array([1e6 + 1.0])}, {}
    contender = {**baseline, "step1/buffer/m": np.array([1e6 + 1.5])}
    assert gates.measure_errors(baseline, contender) == {"step1/buffer/m": 0.5}


def test_execution_order_is_by_step_then_forward_then_backward_then_update():
    ordered = measures.sort_by_execution([*reversed(list(record())), "step10/loss"])
    places = {name: place for place, name in enumerate(ordered)}
    assert max(places[name] for name in places if name.startswith("initial/")) < places["step1/activation/conv"]
    expected = ["activation/conv", "logits", "loss", "gradient/conv.kernel", "buffer/norm.mean", "update/conv.kernel"]
    steps = [[places[f"step{step}/{key}"] for key in expected] for step in (1, 2)]
    assert steps[0] == sorted(steps[0])
    assert steps[0][-1] < steps[1][0]
    assert places["step2/update/conv.kernel"] < places["step10/loss"] < places["evaluation/logits"]
    assert places["evaluation/logits"] < places["delta/conv.kernel"]


def test_activations_run_forward_and_gradients_back():
    ordered = measures.sort_by_execution(list(record()))
    assert ordered.index("step1/activation/conv") < ordered.index("step1/activation/dense")
    assert ordered.index("step1/gradient/dense.kernel") < ordered.index("step1/gradient/conv.kernel")
    assert ordered.index("step1/update/conv.kernel") < ordered.index("step1/update/dense.kernel")


def test_relative_error():
    zero, one = np.zeros(3), np.ones(3)
    assert measures.compute_relative_error(zero, zero) == 0
    assert measures.compute_relative_error(one, one) == 0
    assert measures.compute_relative_error(zero, one) == 1
    assert measures.compute_relative_error(one * 1.5, one) == 0.5
    assert measures.compute_relative_error(one, zero) > 1e300
    assert measures.compute_relative_error(np.zeros(0), np.zeros(0)) == 0
    large = np.full(3, 1e30, np.float32)  # its square is not a float32
    assert math.isclose(measures.compute_relative_error(large * np.float32(2), large), 1)


def test_a_tensor_that_only_the_baseline_has_at_zero_fails():
    baseline, contender = pair()
    for records in baseline.values():
        records["step1/gradient/conv.kernel"] = np.zeros_like(records["step1/gradient/conv.kernel"])
    found = judged(baseline, contender)
    assert (found.first_mismatch or "").startswith("step1/gradient/conv.kernel ")


def test_determinism_is_equality_bit_for_bit():
    once, again = record(), record()
    assert gates.judge_determinism(once, again) == gates.Gate("determinism", 0, 0, True, None)
    for name in ("step2/logits", "step1/gradient/conv.kernel"):
        again[name][0, 0] = np.nextafter(again[name][0, 0], 9)
    assert gates.judge_determinism(once, again) == gates.Gate("determinism", 2, 0, False, "step1/gradient/conv.kernel")


SHARED: dict[str, str] = dict.fromkeys(effective_settings.SHARED, "same")


@pytest.mark.parametrize("name", effective_settings.SHARED)
def test_a_setting_that_decides_the_mathematics_must_be_equal(name: str):
    assert effective_settings.describe_differences(SHARED, SHARED) is None
    assert (
        effective_settings.describe_differences(SHARED, SHARED | {name: "other"})
        == f"unequal effective settings: {name} is same against other"
    )
    without = {key: value for key, value in SHARED.items() if key != name}
    assert (
        effective_settings.describe_differences(without, SHARED)
        == f"unequal effective settings: {name} is None against same"
    )


def test_settings_of_one_framework_alone_may_differ():
    assert (
        effective_settings.describe_differences(
            SHARED | {"donation": True}, SHARED | {"channels-last": True, "compile": True}
        )
        is None
    )
