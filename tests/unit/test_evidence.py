"""Noise floors from perturbed runs: the most of any, and of those at ten units of roundoff a tenth."""

from pathlib import Path

import pytest

from compare.agreement.referee import ROUNDOFF, ULP64
from compare.evidence import Case, Evidence

CASE = Case(2, None)


def test_runs_are_twenty_five_of_which_the_last_five_are_moved_ten_times_as_far() -> None:
    unit = ROUNDOFF["bfloat16"]
    near = [(unit, first, first + 5) for first in (5, 10, 15)]
    found = Evidence({CASE: Path()}, "bfloat16").perturbations
    assert found == [(ULP64, 0, 5), *near, (10 * unit, 20, 25)]
    assert Evidence({CASE: Path()}, "float64").perturbations == [(ULP64, 0, 5)]


@pytest.mark.parametrize(("far", "floor"), [(5e-6, 5e-7), (2e-6, 3e-7)])
def test_a_floor_is_the_most_of_any_run_and_a_tenth_of_the_far_ones(far: float, floor: float) -> None:
    evidence = Evidence({CASE: Path()}, "float32")
    moved = (3e-15, 1e-7, 3e-7, 2e-7, far)
    evidence.floors[CASE] = {run: {"loss": by} for run, by in zip(evidence.perturbations, moved, strict=True)}
    noise = evidence.noise(CASE)
    assert noise.ulp == {"loss": 3e-15}
    assert noise.roundoff == pytest.approx({"loss": floor})
    of_float64 = Evidence({CASE: Path()}, "float64", floors={CASE: {(ULP64, 0, 5): {"loss": 3e-15}}})
    assert of_float64.noise(CASE).roundoff is None
