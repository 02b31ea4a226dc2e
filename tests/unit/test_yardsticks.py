"""The scripts of benchmarks/: what their tables take for a time, and what a step time refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import step_time, tuning_matrix
from compare.report.sentences import DASH
from tests.unit.result_factory import make_contender, make_result

ONE_ROUND = {**make_contender("torch:tuned", 0.002)["step_seconds"], "interval": None}


def table(**changed: dict[str, Any]) -> dict[Path, dict[str, Any]]:
    """Return a result of every tuning of both frameworks, `changed` by backend in its tuned contenders."""
    sides = [
        make_contender(name, 0.002, **(changed.get(name.partition(":")[0], {}) if name.endswith("tuned") else {}))
        for name in tuning_matrix.CONTENDERS
    ]
    return {Path("result.json"): make_result(contenders=sides)}


def times(found: dict[Path, dict[str, Any]]) -> list[str]:
    (row,) = tuning_matrix.rows(found, lambda path, _: path.name)
    return list(row[2:-2])


def test_a_table_has_the_times_of_every_tuning_and_says_where_one_is_missing() -> None:
    assert times(table()) == ["2.000"] * 6
    assert "digits-cnn in tf32, bfloat16; " in tuning_matrix.missing(table())
    assert "digits-cnn in float32, tf32, bfloat16; " in tuning_matrix.missing({})


@pytest.mark.parametrize(
    ("change", "cell"),
    [
        ({"unproven": "wait() returned early"}, "2.000 (unproven)"),
        ({"step_seconds": None, "images_per_second": None}, DASH),
        ({"step_seconds": ONE_ROUND}, "2.000 (one round)"),
        ({"step_seconds": ONE_ROUND, "unproven": "wait() returned early"}, "2.000 (one round, unproven)"),
    ],
)
def test_a_time_that_is_not_proved_or_has_no_interval_leaves_its_table_missing(
    change: dict[str, Any], cell: str
) -> None:
    found = table(jax=change)
    assert times(found) == ["2.000"] * 5 + [cell]
    assert "digits-cnn in float32, tf32, bfloat16; " in tuning_matrix.missing(found)


@pytest.mark.parametrize("loss", [1.0, float("nan"), float("inf")])
def test_a_step_time_of_numbers_that_are_none_is_refused(loss: float) -> None:
    session = SimpleNamespace(losses=lambda: np.array([2.0, loss]))
    worker: Any = SimpleNamespace(
        warm_up=lambda *_: {"steps_per_block": 2, "steady": True},
        block=lambda steps: steps * 1e-3,
        _open_session=session,
    )
    if np.isfinite(loss):
        assert step_time._timed(worker) == {"milliseconds": 1.0, "fastest": 1.0, "slowest": 1.0, "steady": True}
    else:
        with pytest.raises(SystemExit, match="the loss is not finite"):
            step_time._timed(worker)


def test_a_step_time_over_turns_is_the_median_with_the_extremes_of_all() -> None:
    first = {"milliseconds": 1.0, "fastest": 0.9, "slowest": 1.1, "steady": True}
    assert step_time._over([first]) == first
    second = {"milliseconds": 2.0, "fastest": 1.9, "slowest": 2.5, "steady": False}
    over = {"milliseconds": 1.5, "fastest": 0.9, "slowest": 2.5, "steady": False, "turns": [1.0, 2.0]}
    assert step_time._over([first, second]) == over
