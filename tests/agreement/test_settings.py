"""The settings gate: what must be equal, how a difference is named, and what is only remarked."""

from typing import Any

import pytest

from compare.agreement import effective_settings

EQUAL: dict[str, Any] = {
    "parameter_dtype": "float32",
    "compute_dtype": "bfloat16",
    "layer_dtypes": {"conv": "bfloat16", "pool": "bfloat16", "dense": "bfloat16"},
    "tf32": False,
    "loss_scaling": False,
    "batch_size": 64,
    "accumulate": 1,
    "learning_rates": {"0": 0.05, "20": 0.1, "1000": 0.0},
    "batch_norm": "sync",
    "deterministic": False,
}
OTHERS = {
    "parameter_dtype": "float64",
    "compute_dtype": "float32",
    "layer_dtypes": {**EQUAL["layer_dtypes"], "dense": "float32"},
    "tf32": True,
    "loss_scaling": True,
    "batch_size": 32,
    "accumulate": 2,
    "learning_rates": {**EQUAL["learning_rates"], "20": 0.1001},
    "batch_norm": "local",
    "deterministic": True,
}


def test_equal_settings_pass_whatever_else_a_framework_reports():
    found = effective_settings.judge({**EQUAL, "threads": 2, "donation": True}, {**EQUAL, "channels-last": True})
    assert (found.name, found.value, found.limit) == ("settings", 0, 0)
    assert found.passed
    assert found.worst_tensor is None


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_that_decides_the_mathematics_fails_the_gate_by_name(name: str):
    found = effective_settings.judge(EQUAL, {**EQUAL, name: OTHERS[name]})
    assert (found.value, found.passed, found.worst_tensor) == (1, False, name)


def test_learning_rates_may_differ_by_their_rounding_and_a_step_that_has_one_by_nothing():
    rounded = {**EQUAL["learning_rates"], "20": 0.1 * (1 + 2**-23)}
    assert effective_settings.judge(EQUAL, {**EQUAL, "learning_rates": rounded}).passed
    assert effective_settings.describe_differences(EQUAL, {**EQUAL, "learning_rates": rounded}) is None
    fewer = {"0": 0.05, "20": 0.1}
    assert not effective_settings.judge(EQUAL, {**EQUAL, "learning_rates": fewer}).passed
    changed = {**EQUAL["learning_rates"], "20": 0.2}
    said = "unequal effective settings: learning_rates of 20 is 0.1 against 0.2"
    assert effective_settings.describe_differences(EQUAL, {**EQUAL, "learning_rates": changed}) == said


def test_every_setting_that_decides_the_mathematics_is_here():
    assert set(OTHERS) == set(EQUAL) == set(effective_settings.SHARED)


def test_the_gate_counts_all_that_differ_and_names_the_first():
    found = effective_settings.judge(EQUAL, {**EQUAL, "batch_size": 32, "compute_dtype": "float32"})
    assert (found.value, found.passed, found.worst_tensor) == (2, False, "compute_dtype")


def test_layer_dtypes_are_named_layer_by_layer():
    changed = {"conv": "bfloat16", "pool": "float32", "dense": "float16"}
    assert effective_settings.describe_differences(EQUAL, {**EQUAL, "layer_dtypes": changed}) == (
        "unequal effective settings: layer_dtypes of pool is bfloat16 against float32, "
        "layer_dtypes of dense is bfloat16 against float16"
    )


def test_layers_that_differ_alike_are_named_together() -> None:
    wide = dict.fromkeys(EQUAL["layer_dtypes"], "float64")
    first, *others = wide
    said = effective_settings.describe_differences(EQUAL, {**EQUAL, "layer_dtypes": wide})
    assert (
        said
        == f"unequal effective settings: layer_dtypes of {first} and {len(others)} more is bfloat16 against float64"
    )


def test_a_layer_that_only_one_side_has_is_named():
    fewer = {"conv": "bfloat16", "pool": "bfloat16"}
    text = "unequal effective settings: layer_dtypes of dense is {} against {}"
    assert effective_settings.describe_differences(EQUAL, {**EQUAL, "layer_dtypes": fewer}) == text.format(
        "bfloat16", None
    )
    assert effective_settings.describe_differences({**EQUAL, "layer_dtypes": fewer}, EQUAL) == text.format(
        None, "bfloat16"
    )


def test_excess_precision_of_one_side_is_remarked_and_fails_nothing():
    allowed = {**EQUAL, "excess_precision": True}
    rounds = {**EQUAL, "excess_precision": False}
    said = "compiler may keep float32 between fused operations (excess precision), the other rounds"
    assert list(effective_settings.list_remarks(allowed, rounds)) == [f"the baseline's {said}"]
    assert list(effective_settings.list_remarks(rounds, allowed)) == [f"the contender's {said}"]
    assert effective_settings.judge(allowed, rounds).passed
    assert effective_settings.describe_differences(allowed, rounds) is None


@pytest.mark.parametrize("both", [{}, {"excess_precision": False}, {"excess_precision": True}], ids=str)
def test_excess_precision_of_both_or_neither_is_not_remarked(both: dict[str, bool]):
    assert not list(effective_settings.list_remarks({**EQUAL, **both}, {**EQUAL, **both}))


def test_gradients_added_up_in_unlike_dtypes_are_remarked_and_fail_nothing():
    wide, narrow = ({**EQUAL, "reduction_dtype": dtype} for dtype in ("float32", "bfloat16"))
    said = "gradients are added up over devices in float32 (baseline), bfloat16 (contender)"
    assert list(effective_settings.list_remarks(wide, narrow)) == [said]
    assert effective_settings.judge(wide, narrow).passed


@pytest.mark.parametrize("of_one_device", [{}, {"reduction_dtype": None}], ids=str)
def test_a_side_that_reduces_nothing_is_not_remarked(of_one_device: dict[str, None]):
    assert not list(
        effective_settings.list_remarks({**EQUAL, "reduction_dtype": "float32"}, {**EQUAL, **of_one_device})
    )


def test_a_side_that_is_debugged_is_remarked_and_fails_nothing():
    plain, debugged = ({**EQUAL, "debugging": modes} for modes in ([], ["jax_debug_nans", "jax_enable_checks"]))
    said = "the contender trains with jax_debug_nans, jax_enable_checks on, which slows it down"
    assert list(effective_settings.list_remarks(plain, debugged)) == [said]
    assert list(effective_settings.list_remarks(debugged, EQUAL)) == [said.replace("contender", "baseline")]
    assert effective_settings.judge(plain, debugged).passed
    assert not list(effective_settings.list_remarks(plain, EQUAL))


def test_sums_that_one_side_takes_in_float32_are_remarked_with_the_longest_one():
    widened = {**EQUAL, "widened_sums": {"stem": 2048, "": 4096}}
    (said,) = effective_settings.list_remarks(EQUAL, widened)
    assert said.startswith("the contender takes sums of up to 4,096 bfloat16 values in float32 (stem and 1 more)")
    assert not list(effective_settings.list_remarks(EQUAL, {**EQUAL, "widened_sums": {}}))
    assert effective_settings.judge(EQUAL, widened).passed
