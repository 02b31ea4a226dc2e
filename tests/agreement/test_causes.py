"""Each likely cause is suggested where its pattern of tensors disagrees, and no other cause is."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from compare.agreement import (
    certificate,
    gates,
    likely_causes,
    measures,
)
from compare.agreement.certificate import Certificate
from compare.agreement.floors import Noise
from compare.agreement.gates import Gate
from compare.base.interface import Array, Arrays
from tests.agreement import made_up

EXACT = made_up.exact()
COUNT = 4 * 4 * 4  # images times pixels of the batch-norm layer

REDUCTION = "every gradient is scaled by {}: loss reduction (sum or mean, loss scale not undone)"
VARIANCE = f"running variance differs by n/(n-1) with n = {COUNT}: biased against unbiased variance"
STATISTICS = "only buffers differ in training: running statistics (momentum, biased or unbiased variance)"
EVALUATION = "only evaluation differs: running variance or epsilon used in evaluation, or batch statistics there"
WITHOUT = "only evaluation differs, without running statistics: something that is done in training alone, or not then"
LATER = "the first step agrees: momentum, Nesterov form, bias correction or schedule"
RULE = "gradients agree, updates do not: learning rate, epsilon, weight decay, clipping or optimizer form"
STRIDED = "strided halves the image and is the first to differ: padding (SAME pads 3x3 stride 2 by 0 and 1)"
AFTER = "logits are the first to differ: a function after the last layer, its arguments, or what is added there"
LOSS = "the loss is the first to differ, of logits that agree: its form, label smoothing, or what it is a mean of"
ROUNDED = "{} is the first to differ, and by no more than float32 rounds: a constant, a table or a cast in float32"
LAYER = "{} is the first layer to differ: its arithmetic, epsilon, padding or parameters"


def noisy(array: Array) -> Array:
    return array + np.random.default_rng(5).standard_normal(array.shape)


def scaled(factor: float, array: Array) -> Array:
    return array * factor


def change(function: Callable[[Array], Array], *parts: str) -> Arrays:
    return made_up.changed(EXACT, function, *parts)


def variance(momentum: float, factor: float) -> Arrays:
    """Return the record in which the batch's part of the running variance is `factor` times as large."""
    name, start = "step1/buffer/norm.var", EXACT["initial/norm.var"]
    batch = EXACT[name] - (1 - momentum) * start
    return {**EXACT, name: (1 - momentum) * start + factor * batch}


def failing(contender: Arrays) -> list[str]:
    errors = gates.measure_errors(EXACT, contender)
    return [name for name in measures.sort_by_execution(list(errors)) if errors[name] > gates.SEMANTIC.limit]


FORWARD = ("activation/norm", "activation/dense", "logits", "loss", "gradient", "buffer", "update", "delta")
PATTERNS: list[tuple[Arrays, str | None]] = [
    (change(partial(scaled, 64.0), "gradient/"), REDUCTION.format("64")),
    (change(partial(scaled, 1 / 3), "gradient/", "update/", "step2/", "delta/"), REDUCTION.format("0.333333")),
    *[(variance(momentum, COUNT / (COUNT - 1)), VARIANCE) for momentum in (0.1, 0.01, 0.001)],
    (variance(0.1, (COUNT - 1) / COUNT), VARIANCE),
    (variance(0.1, COUNT / (COUNT - 2)), STATISTICS),
    (change(partial(scaled, 1.1), "buffer/"), STATISTICS),
    (change(partial(scaled, 1.1), "buffer/", "evaluation/", "delta/norm.mean"), STATISTICS),
    (change(noisy, "evaluation/"), EVALUATION),
    (change(noisy, "step2/", "evaluation/", "delta/"), LATER),
    (change(noisy, "step2/update/norm.scale"), LATER),
    (change(partial(scaled, 1.001), "update/", "step2/", "evaluation/", "delta/"), RULE),
    (change(noisy, "step1/update/norm.scale"), RULE),
    (change(noisy, "activation/strided", *FORWARD), STRIDED),
    (change(noisy, "activation/first", "activation/strided", *FORWARD), LAYER.format("first")),
    (change(noisy, *FORWARD), LAYER.format("norm")),
    (change(noisy, "activation/dense", "logits"), LAYER.format("dense")),
    (change(noisy, "logits", "loss", "gradient", "update", "delta"), AFTER),
    (change(partial(scaled, 1 + 6e-8), "activation/dense", "logits"), ROUNDED.format("dense")),
    (change(partial(scaled, 1 + 6e-8), "logits"), ROUNDED.format("logits")),
    (change(partial(scaled, 1 + 6e-7), "activation/dense", "logits"), LAYER.format("dense")),
    (change(noisy, "loss", "gradient", "update", "delta"), LOSS),
    # No pattern: one gradient alone, gradients scaled unequally, a later step's activations, or the path that is timed.
    (change(partial(scaled, 2.0), "gradient/first.kernel"), None),
    (made_up.changed(change(partial(scaled, 2.0), "gradient/"), partial(scaled, 2.0), "gradient/norm"), None),
    (change(noisy, "gradient/"), None),
    (change(noisy, "step2/activation/dense"), None),
    (change(noisy, "delta/"), None),
]


@pytest.mark.parametrize(("contender", "cause"), PATTERNS, ids=[str(cause)[:40] for _, cause in PATTERNS])
def test_a_cause_is_suggested_by_its_pattern(contender: Arrays, cause: str | None):
    assert likely_causes.find_cause(EXACT, contender, failing(contender)) == cause


def test_an_image_of_an_odd_size_is_halved_and_rounded_up():
    sizes = {"step1/activation/first": 9, "step1/activation/strided": 5}
    exact = EXACT | {name: np.ones((4, size, size, 3)) for name, size in sizes.items()}
    contender = made_up.changed(exact, noisy, "step1/activation/strided")
    assert likely_causes.find_cause(exact, contender, ["step1/activation/strided"]) == STRIDED


def test_a_gate_that_fails_after_a_mismatch_in_words_is_not_what_differs_first():
    failed = [Gate("update", 9.0, 2.0, False, "first.kernel")]
    assert Certificate((), "settings: batch_size").extended(failed).tensor is None
    assert Certificate((), None).extended(failed).tensor == "first.kernel"


def test_evaluation_without_buffers_has_a_cause_of_its_own():
    exact = {name: array for name, array in EXACT.items() if "/buffer/" not in name}
    names = ["evaluation/logits"]
    assert likely_causes.find_cause(exact, made_up.changed(exact, noisy, *names), names) == WITHOUT


def test_a_zero_gradient_has_no_factor():
    zero = made_up.changed(EXACT, np.zeros_like, "step1/gradient/norm.scale")
    contender = made_up.changed(zero, partial(scaled, 64.0), "gradient/")
    names = [name for name in EXACT if name.startswith("step1/gradient/")]
    assert likely_causes.find_cause(zero, contender, names) is None


def test_the_certificate_names_tensor_errors_and_cause():
    contender = change(partial(scaled, 1.001), "update/")
    sides = [{"float64": side, "float32": made_up.rounded(side, 1e-7, dtype="float32")} for side in (EXACT, contender)]
    made = certificate.judge(sides[0], sides[1], "float64", Noise({}))
    assert made.first_mismatch is not None
    assert made.first_mismatch.startswith("step1/update/first.kernel (e64 1.0e-03, e32/e64 1.0e+00); ")
    assert made.first_mismatch.endswith(f"; likely cause: {RULE}")


def test_without_a_pattern_the_certificate_names_the_tensor_alone():
    contender = change(partial(scaled, 1.001), "delta/first.kernel")
    sides = [{"float64": side, "float32": made_up.rounded(side, 1e-7, dtype="float32")} for side in (EXACT, contender)]
    made = certificate.judge(sides[0], sides[1], "float64", Noise({}))
    assert (made.first_mismatch or "").startswith("delta/first.kernel (e64 1.0e-03")
    assert "cause" not in (made.first_mismatch or "")


def _records(inputs: Array, gradient: Array) -> Arrays:
    return {
        "initial/a.kernel": np.ones((2, 3)),
        "step1/activation/a.input": inputs,
        "step1/gradient/a.kernel": gradient,
    }


def test_channels_in_another_order_are_told_apart_from_other_values() -> None:
    inputs, gradient = np.random.default_rng(0).normal(size=(4, 5, 5, 6)), np.ones((2, 3))
    turned = np.roll(inputs, 2, axis=-1)
    a, failing = _records(inputs, gradient), ["step1/activation/a.input"]
    cause = likely_causes.find_cause(a, _records(turned, gradient), failing)
    assert cause is not None
    assert "the input of a has the same channels on both sides in another order" in cause
    other = likely_causes.find_cause(a, _records(inputs + 1, gradient), failing)
    assert other is not None
    assert "in another order" not in other


def test_a_parameter_that_trains_on_one_side_only_is_named() -> None:
    inputs = np.ones((2, 3))
    sides = _records(inputs, np.zeros((2, 3))), _records(inputs, np.ones((2, 3)))
    cause = likely_causes.find_cause(*sides, ["step1/gradient/a.kernel"])
    assert cause is not None
    assert cause.startswith("a.kernel trains on one side only, its gradient is zero in the baseline")
