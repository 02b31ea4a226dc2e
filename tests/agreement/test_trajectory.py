"""The trajectory gate on made-up loss curves, and the accuracy gate on made-up accuracies."""

import math

import numpy as np
import pytest

from compare.agreement import trajectory
from compare.agreement.trajectory import Curves
from compare.base.interface import Array

STEPS = 20
LOSS = np.linspace(2.3, 0.1, STEPS)
GROWTH = 1e-6 * 1.5 ** np.arange(STEPS)  # chaos: what one ulp becomes


def curves(own: Array = LOSS, spread: Array = GROWTH) -> Curves:
    """Return a side whose twins lie at most `spread` from `own`."""
    return Curves.of(own, np.stack([own + factor * spread for factor in (0.3, -1.0, 0.5)]))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("times", "passes"), [(0.0, True), (1.0, True), (2.9, True), (3.1, False), (100.0, False)])
def test_the_distance_may_be_three_times_the_envelope(times: float, passes: bool, sign: int):
    found = trajectory.judge_losses(curves(), curves(LOSS + sign * times * GROWTH))
    assert (found.name, found.limit, found.passed) == ("trajectory", 3.0, passes)
    assert found.value == pytest.approx(times, rel=1e-6, abs=1e-6)


def test_the_first_step_outside_is_found_and_named():
    moved = LOSS.copy()
    moved[7] += 10 * GROWTH[7]
    found = trajectory.judge_losses(curves(), curves(moved))
    assert not found.passed
    assert found.value == pytest.approx(10, rel=1e-6)
    assert found.worst_tensor == "loss at step 8"


@pytest.mark.parametrize("wider", ["baseline", "contender"])
def test_the_wider_of_both_envelopes_counts(wider: str):
    spreads = (GROWTH, GROWTH / 100) if wider == "baseline" else (GROWTH / 100, GROWTH)
    assert trajectory.judge_losses(curves(LOSS, spreads[0]), curves(LOSS + GROWTH, spreads[1])).passed
    assert not trajectory.judge_losses(curves(LOSS, GROWTH / 100), curves(LOSS + GROWTH, GROWTH / 100)).passed


def test_an_envelope_is_the_largest_distance_so_far_of_any_twin():
    twins = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.5, 1.0, 1.75]])
    np.testing.assert_array_equal(Curves.of(np.ones(4), twins).envelope, [0, 0.5, 0.5, 0.75])


def test_a_loss_that_comes_back_stays_outside_until_the_envelope_has_widened():
    early = LOSS.copy()
    early[2] += 5 * GROWTH[2]
    found = trajectory.judge_losses(curves(LOSS, np.full(STEPS, GROWTH[2])), curves(early, np.full(STEPS, GROWTH[2])))
    assert found.value == pytest.approx(5, rel=1e-6)
    assert not found.passed


def test_twins_that_never_move_leave_the_resolution_of_a_float32_loss():
    level, nothing = np.full(STEPS, 2.3), np.zeros(STEPS)
    still = curves(level, nothing)
    assert trajectory.judge_losses(still, still).value == 0
    assert trajectory.judge_losses(still, curves(level * (1 + 2.0**-23), nothing)).value == pytest.approx(1)
    assert not trajectory.judge_losses(still, curves(level * (1 + 2.0**-21), nothing)).passed


def test_one_unit_of_a_large_early_loss_stays_one_unit_when_the_loss_has_fallen():
    moved, nothing = LOSS.copy(), np.zeros(STEPS)
    moved[0] *= 1 + 2.0**-23
    assert trajectory.judge_losses(curves(LOSS, nothing), curves(moved, nothing)).passed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["own", "twins"])
@pytest.mark.parametrize("side", [0, 1], ids=["baseline", "contender"])
def test_a_loss_that_is_not_finite_fails(side: int, where: str, value: float):
    losses = {"own": LOSS.copy(), "twins": np.stack([LOSS, LOSS + GROWTH])}
    losses[where][..., -1] = value
    sides = [curves(), curves()]
    sides[side] = Curves.of(losses["own"], losses["twins"])
    found = trajectory.judge_losses(*sides)
    assert (found.passed, found.value, found.worst_tensor) == (False, None, "loss")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("difference", "passes"), [(0.0, True), (0.0099, True), (0.0101, False), (0.2, False)])
def test_accuracies_that_always_differ_by_as_much_are_judged_by_the_margin_of_one_point(
    difference: float, passes: bool, sign: int
):
    baseline = [0.5, 0.625, 0.75]
    found = trajectory.judge_accuracies(baseline, [accuracy + sign * difference for accuracy in baseline])
    assert (found.name, found.limit, found.passed) == ("accuracy", 0.01, passes)
    assert found.value == pytest.approx(difference, abs=1e-12)
    assert found.worst_tensor == "test accuracy, 3 seeds"


@pytest.mark.parametrize(("spread", "passes"), [(0.01, True), (0.02, False)])
def test_accuracies_that_vary_much_are_not_equivalent_although_their_means_are_equal(spread: float, passes: bool):
    differences = spread * np.array([1.0, -1.0, 0.5, -0.5, 0.0])
    found = trajectory.judge_accuracies([0.9] * 5, list(0.9 + differences))
    # Two one-sided tests at 95 %: Student's t of 4 degrees of freedom, 2.131847 (tables), times the standard error.
    assert found.value == pytest.approx(2.131847 * spread * math.sqrt(2.5 / 4 / 5), rel=1e-6)
    assert found.passed == passes


@pytest.mark.parametrize("sign", [1, -1])
def test_the_far_end_of_the_interval_counts(sign: int):
    found = trajectory.judge_accuracies(
        [0.5] * 4, [0.5 + sign * difference for difference in (0.001, 0.009, 0.001, 0.009)]
    )
    assert found.value == pytest.approx(0.005 + 2.353363 * 0.004 / math.sqrt(3), rel=1e-6)
    assert not found.passed


@pytest.mark.parametrize(
    ("twin", "limit", "passes"),
    [(0.0, 0.01, False), (0.003, 0.01, False), (0.02, 0.06, False), (0.04, 0.12, True)],
)
def test_accuracies_may_differ_by_as_much_as_an_ulp_of_the_weights_makes(twin: float, limit: float, passes: bool):
    baseline, contender = [0.5, 0.625, 0.75], [0.6, 0.725, 0.85]
    steady, unsteady = (baseline, baseline), (contender, [accuracy + twin for accuracy in contender])
    found = trajectory.judge_accuracies(baseline, contender, [steady, unsteady])
    assert (found.limit, found.passed) == (pytest.approx(limit), passes)
    assert found.worst_tensor == "test accuracy, 3 seeds" + (", by one-ulp twins" if limit > 0.01 else "")


def test_accuracies_are_paired_by_seed():
    baseline = [0.5, 0.7, 0.9]
    assert trajectory.judge_accuracies(baseline, baseline).value == 0
    assert not trajectory.judge_accuracies(baseline, baseline[::-1]).passed
    with pytest.raises(ValueError, match="shorter"):
        trajectory.judge_accuracies(baseline, baseline[:2])
