"""The gate `update` on made-up changes: what two sides must have in common, and what rounding excuses."""

import math

import numpy as np
import pytest

from compare.agreement import gates
from compare.agreement.gates import Gate, Updates
from compare.interface import Array, Arrays

RANDOM = np.random.default_rng(0)
KERNEL, ACROSS, BIAS = np.linalg.qr(RANDOM.standard_normal((64, 3)))[0].T  # of norm 1, and nothing in common
BIAS = 1e-3 * BIAS


def side(kernel: Array = KERNEL, bias: Array = BIAS) -> Updates:
    """Return a side's changes, which an ulp leaves as they are."""
    own: Arrays = {"dense.kernel": kernel, "dense.bias": bias}
    return Updates(own, own)


def test_equal_updates_pass() -> None:
    gate = gates.update(side(), side())
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
    gate = gates.update(*(reversed(sides) if backwards else sides))
    assert gate.value == (figure and pytest.approx(figure))
    assert gate.passed is (figure is not None and figure < 2)
    assert gate.worst_tensor == "dense.kernel"


def test_a_small_parameter_is_not_lost_among_the_large_ones() -> None:
    gate = gates.update(side(), side(bias=-BIAS))
    assert (gate.passed, gate.worst_tensor) == (False, "dense.bias")


def test_what_an_ulp_turns_round_on_both_sides_is_not_asked() -> None:
    noisy, other = side(bias=BIAS), side(bias=-BIAS)
    baseline = Updates(noisy.own, other.own)
    assert gates.update(baseline, Updates(other.own, noisy.own)).passed
    # Where one side knows better, the other may not call it rounding.
    assert gates.update(baseline, other).worst_tensor == "dense.bias"
    assert gates.update(other, baseline).worst_tensor == "dense.bias"


@pytest.mark.parametrize(("kernel", "asked"), [(KERNEL + 0.49 * ACROSS, True), (KERNEL + 0.51 * ACROSS, False)])
def test_rounding_is_no_more_than_a_quarter_more(kernel: Array, asked: bool) -> None:
    own, moved = {"dense.kernel": KERNEL}, {"dense.kernel": kernel}
    gate = gates.update(Updates(own, moved), Updates({"dense.kernel": ACROSS}, {"dense.kernel": KERNEL}))
    assert gate.worst_tensor == ("dense.kernel" if asked else None)
    assert not gate.passed


@pytest.mark.parametrize("updates", [Updates({"kernel": KERNEL}, {"kernel": ACROSS}), side(0 * KERNEL, 0 * BIAS)])
def test_a_gate_that_can_ask_nothing_fails(updates: Updates) -> None:
    assert gates.update(updates, updates) == Gate("update", None, 2, False, None)
