"""The gate `update` on made-up changes: what two sides must have in common, and what rounding excuses."""

import math

import numpy as np
import pytest

from compare.agreement import gates, measures
from compare.agreement.gates import Gate
from compare.agreement.measures import Updates
from compare.base.interface import Array

RANDOM = np.random.default_rng(0)
KERNEL, ACROSS, BIAS = np.linalg.qr(RANDOM.standard_normal((64, 3)))[0].T  # of norm 1, and nothing in common
BIAS = 1e-3 * BIAS


def side(kernel: Array = KERNEL, bias: Array = BIAS, noise: float = 1.0) -> Updates:
    """Return a side's changes, with that noise in those of the bias."""
    return Updates({"dense.kernel": kernel, "dense.bias": bias}, {"dense.kernel": 1.0, "dense.bias": noise})


def test_equal_updates_pass() -> None:
    gate = gates.judge_update(side(), side())
    assert (gate.name, gate.value, gate.limit, gate.passed) == ("update", pytest.approx(1), 2, True)


@pytest.mark.parametrize(
    ("kernel", "figure"),
    [
        (1.9 * KERNEL, 1.9),
        (2.1 * KERNEL, 2.1),
        (KERNEL / 1.9, 1.9),
        (KERNEL / 2.1, 2.1),
        (KERNEL + 0.9 * ACROSS, 1.81),  # as far along the baseline's, and a part that is none of its
        (KERNEL + 1.1 * ACROSS, 2.21),
        (0 * KERNEL, None),
        (-KERNEL, None),
        (ACROSS, None),
        (math.nan * KERNEL, None),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_another_size_or_direction_fails(kernel: Array, figure: float | None, backwards: bool) -> None:
    sides = side(), side(kernel)
    gate = gates.judge_update(*(reversed(sides) if backwards else sides))
    assert gate.value == (figure and pytest.approx(figure))
    assert gate.passed is (figure is not None and figure < 2)
    assert gate.worst_tensor == "dense.kernel"


def test_a_small_parameter_is_not_lost_among_the_large_ones() -> None:
    gate = gates.judge_update(side(), side(bias=-BIAS))
    assert (gate.passed, gate.worst_tensor) == (False, "dense.bias")


@pytest.mark.parametrize(("ours", "theirs", "asked"), [(1.24, 9.0, True), (9.0, 1.24, True), (1.26, math.inf, False)])
def test_what_an_ulp_decides_on_both_sides_is_not_asked(ours: float, theirs: float, asked: bool) -> None:
    gate = gates.judge_update(side(noise=ours), side(bias=-BIAS, noise=theirs))
    assert gate.passed is not asked
    assert gate.worst_tensor == ("dense.bias" if asked else "dense.kernel")


@pytest.mark.parametrize("noise", [1.3, math.inf])
def test_a_gate_that_can_ask_nothing_fails(noise: float) -> None:
    updates = Updates({"kernel": KERNEL}, {"kernel": noise})
    assert gates.judge_update(updates, updates) == Gate("update", None, 2, False, None)


def test_what_no_side_moves_is_not_known() -> None:
    assert measures.update_distances({"kernel": 0 * KERNEL}, {"kernel": 0 * KERNEL}) == {"kernel": math.inf}


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-23), ("float64", 2.0**-52)])
def test_what_is_added_in_the_last_places_is_not_stored(dtype: str, unit: float) -> None:
    for units, stored in ((3.9, False), (4.1, True)):
        assert measures.is_stored(np.full(9, units * unit, dtype), np.ones(9, dtype)) is stored
    assert measures.is_stored(np.full(9, 1e-30, dtype), np.zeros(9, dtype))


def with_buffer(mean: Array, noise: float = 1.0, kernel_noise: float = 1.0) -> Updates:
    """Return a side with the change of a buffer, and that noise in it."""
    return Updates({"dense.kernel": KERNEL, "norm.mean": mean}, {"dense.kernel": kernel_noise, "norm.mean": noise})


@pytest.mark.parametrize(("factor", "passes"), [(1.009, True), (1.011, False), (1 / 1.009, True), (1 / 1.011, False)])
def test_buffers_are_held_a_hundred_times_as_closely(factor: float, passes: bool) -> None:
    gate = gates.judge_update(with_buffer(ACROSS), with_buffer(factor * ACROSS))
    assert (gate.passed, gate.worst_tensor) == (passes, "norm.mean")
    assert gate.value == pytest.approx(1 + 100 * (max(factor, 1 / factor) - 1))


def test_a_buffer_of_one_side_alone_fails_and_one_that_an_ulp_decides_is_not_asked() -> None:
    unmoved = with_buffer(0 * ACROSS, noise=math.inf)
    gate = gates.judge_update(with_buffer(ACROSS), unmoved)
    assert (gate.passed, gate.value, gate.worst_tensor) == (False, None, "norm.mean")
    assert gates.judge_update(with_buffer(ACROSS, noise=1.3), unmoved).passed


def test_buffers_alone_are_no_update() -> None:
    one = with_buffer(ACROSS, kernel_noise=math.inf)
    gate = gates.judge_update(one, one)
    assert (gate.passed, gate.value, gate.worst_tensor) == (False, None, None)
