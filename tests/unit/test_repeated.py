"""A program that restarts after timed blocks must begin as it did before them."""

from typing import Any

import pytest

from compare.base.commands import Restarted, TrainingStart
from compare.execution import reproducibility

BEFORE: dict[str, Any] = {"steps": 8, "losses": [2.3, 2.2, 2.0], "moved": {"kernel": 0.02, "scale": 1e-3}}
SAID = "the contender changed while it was timed: from the same weights and batches, "


def after(**changes: Any) -> dict[str, Any]:
    return BEFORE | changes


def change(first: dict[str, Any], again: dict[str, Any], precision: str) -> str | None:
    starts = Restarted(TrainingStart(**first), TrainingStart(**again))
    return reproducibility.describe_change(starts, precision)


def moved(**changes: float | None) -> dict[str, Any]:
    return after(moved=BEFORE["moved"] | changes)


@pytest.mark.parametrize(
    "again",
    [
        BEFORE,
        after(losses=[2.3 * (1 + 4e-2), 2.7, 1.5]),  # another order of sums, and training amplifies it
        moved(kernel=0.19),
        moved(kernel=0.0021),
    ],
)
def test_what_rounding_does_is_no_change(again: dict[str, Any]) -> None:
    assert change(BEFORE, again, "bfloat16") is None


def test_what_moves_by_rounding_alone_is_not_asked() -> None:
    still = BEFORE | {"moved": {"kernel": 0.02, "scale": 5e-8}}
    assert change(still, still | {"moved": {"kernel": 0.02, "scale": 9e-7}}, "float32") is None
    assert change(still, still | {"moved": {"kernel": 0.02, "scale": 2e-6}}, "float32") is not None


@pytest.mark.parametrize(
    ("again", "precision", "said"),
    [
        (
            after(losses=[2.301, 2.2, 2.0]),
            "float32",
            "the loss at step 1 is 2.301 after the timed blocks, before them it was 2.3",
        ),
        (
            after(losses=[2.3, 2.2, 2.7]),
            "bfloat16",
            "the loss at step 3 is 2.7 after the timed blocks, before them it was 2.0",
        ),
        (
            moved(kernel=0.0),
            "bfloat16",
            "8 steps move kernel by 0 of its norm after the timed blocks, before them by 0.02",
        ),
        (
            moved(scale=0.011),
            "bfloat16",
            "8 steps move scale by 0.011 of its norm after the timed blocks, before them by 0.001",
        ),
        (moved(scale=None), "bfloat16", "scale becomes infinite after the timed blocks alone"),
    ],
)
def test_a_change_is_told_in_words(again: dict[str, Any], precision: str, said: str) -> None:
    assert change(BEFORE, again, precision) == SAID + said


def test_what_was_infinite_before_alone_is_a_change_and_both_times_none() -> None:
    infinite = moved(kernel=None)
    assert change(infinite, infinite, "float32") is None
    assert change(infinite, BEFORE, "float32") == SAID + "kernel becomes infinite before the timed blocks alone"
