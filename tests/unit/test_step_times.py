"""Which rounds a step time is of: those that count, whatever the void ones say."""

from pathlib import Path
from statistics import mean, median

import pytest

from compare.plugin.result import Result
from compare.report import measurements
from compare.results import result_file
from tests.unit.result_factory import complete, make_contender, make_result, typed

ROUNDS = [[0.0030, 0.0031, 0.0032], [0.05, 0.06, 0.07], [0.0020, 0.0021, 0.0022]]


@pytest.mark.parametrize(
    ("void", "seconds"),
    [
        ([], (0.0031 * 0.06 * 0.0021) ** (1 / 3)),
        ([2], (0.0031 * 0.0021) ** 0.5),
        ([2, 3], 0.0031),
        ([1, 2], 0.0021),  # and 0.0031 is the median of all blocks
        ([1, 2, 3], None),
    ],
)
def test_a_step_time_is_of_the_rounds_that_count(void: list[int], seconds: float | None, tmp_path: Path) -> None:
    step = make_contender()["step_seconds"] | {"samples": ROUNDS, "windows": [[[1.0, 1.1]] * 3] * 3}
    found = make_result(contenders=[make_contender(step_seconds=step), make_contender("jax", step_seconds=step)])
    found["spec"]["rounds"] = 3
    found["voided"] = [{"round": number, "reason": "other programs"} for number in void]
    found = complete(found)
    result_file.validate(found)
    for contender in found["contenders"]:
        rate = None if seconds is None else found["spec"]["batch_size"] / seconds
        assert contender["step_seconds"]["estimate"] == (seconds and pytest.approx(seconds))
        assert contender["images_per_second"] == (rate and pytest.approx(rate))
        assert contender["step_seconds"]["samples"] == ROUNDS
        blocks = [value for number, blocks in enumerate(ROUNDS, start=1) if number not in void for value in blocks]
        blocks = blocks or [value for blocks in ROUNDS for value in blocks]
        assert contender["step_seconds"]["median"] == pytest.approx(median(blocks))
        assert contender["step_seconds"]["mean"] == pytest.approx(mean(blocks))
    cells = dict(measurements.make_rows(typed(found).contenders, 0.95))
    assert any(label.startswith("step time") for label in cells) == (seconds is not None)
    assert (
        Result(typed(found), tmp_path).contender("jax").step_seconds
        == found["contenders"][1]["step_seconds"]["estimate"]
    )


def test_a_far_round_is_named_by_its_own_number_whichever_are_void() -> None:
    steady = [[0.003, 0.003, 0.003]] * 8
    far = [[2 * value for value in blocks] if number == 6 else blocks for number, blocks in enumerate(steady, start=1)]
    windows = {"windows": [[[1.0, 1.1]] * 3] * 8}
    steps = [make_contender()["step_seconds"] | windows | {"samples": samples} for samples in (steady, far)]
    found = make_result(
        contenders=[make_contender(step_seconds=steps[0]), make_contender("jax", step_seconds=steps[1])]
    )
    found["spec"]["rounds"], found["voided"] = 8, [{"round": 2, "reason": "other programs"}]
    assert complete(found)["comparisons"][0]["outliers"] == [6]
