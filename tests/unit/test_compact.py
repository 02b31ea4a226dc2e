"""The table and the picture of several results: every figure of the results, and none where there is no claim."""

from typing import Any

from compare.report import compact, figures
from compare.report.plots import summary_plot
from compare.report.plots.canvas import Picture
from compare.report.sentences import DASH
from tests.unit.result_factory import complete, make_comparison, make_contender, make_result, typed


def make_requests() -> dict[str, Any]:
    """Return a result of requests of 1 and 32 images."""
    comparisons = [make_comparison(verdict="EQUIVALENT", batch_size=size) for size in (1, 32)]
    return make_result(spec={"task": "infer", "batch_sizes": [1, 32], "batch_size": 32}, comparisons=comparisons)


def rows(*results: dict[str, Any]) -> list[tuple[str, ...]]:
    table = compact.make_table([typed(result) for result in results])
    return [tuple(row) for row in table.rows]


def test_a_row_has_milliseconds_ratio_interval_memory_and_verdict() -> None:
    result = make_result()
    assert rows(result) == [
        ("torch", "2.500", DASH, DASH, "12.0", "baseline"),
        ("jax", "1.747", "0.699", "0.688 to 0.711", "12.0", "FASTER"),
    ]


def test_settings_that_differ_are_columns_and_the_others_stand_in_the_caption() -> None:
    other = make_result(id="x", spec={"precision": "bfloat16", "batch_size": 32})
    table = compact.make_table([typed(make_result()), typed(other)])
    assert tuple(table.columns[:3]) == ("precision", "batch", "contender")
    assert [row[:3] for row in table.rows][1:3] == [("float32", "64", "jax"), ("bfloat16", "32", "torch")]
    assert "In all rows: workload digits-cnn, device cpu (Example CPU)." in table.caption


def test_invalid_has_neither_a_time_nor_a_ratio() -> None:
    result = make_result(comparisons=[make_comparison(verdict="INVALID")])
    assert [row[1:4] for row in rows(result)] == [(DASH, DASH, DASH), (DASH, DASH, DASH)]
    assert rows(result)[1][-1] == "INVALID"
    three = make_result(
        contenders=[make_contender("torch", 2.5e-3), make_contender("jax", 1.7e-3), make_contender("jax#2", 1.8e-3)],
        comparisons=[make_comparison("jax", "INVALID"), make_comparison("jax#2", "FASTER")],
    )
    assert [row[1] for row in rows(three)] == ["2.500", DASH, "1.800"]


def test_void_rounds_give_no_time() -> None:
    result = make_result()
    result["voided"] = [{"round": number, "reason": "others"} for number in range(1, 11)]
    result["telemetry"] |= {"foreign_cores": [1.0] * 10}
    assert [row[1] for row in rows(complete(result))] == [DASH, DASH]


def test_a_failed_contender_has_its_status() -> None:
    failed = make_contender("jax", status="oom", reason="too large", step_seconds=None, memory=None)
    invalid = make_comparison(verdict="INVALID", reason="jax failed")
    assert rows(make_result(contenders=[make_contender(), failed], comparisons=[invalid]))[1] == (
        *("jax", DASH, DASH, DASH, DASH, "oom"),
    )


def test_a_picture_for_a_slide_has_its_title_and_its_setting() -> None:
    picture = compact.make_section([typed(make_result()), typed(make_result(id="x", spec={"seed": 1}))]).picture
    assert isinstance(picture, Picture)
    drawn = figures.draw(picture, "png")
    assert drawn.startswith(b"\x89PNG")
    assert figures.draw(picture, "png") == drawn
    assert b"Step times relative to the baseline" in drawn
    assert b"10 rounds of fresh processes" in drawn


def test_a_picture_has_every_batch_of_requests_and_comparisons_without_a_ratio() -> None:
    invalid = make_comparison(verdict="INVALID", reason="the models do not agree")
    lines = summary_plot.list_lines([typed(make_requests()), typed(make_result(comparisons=[invalid]))])
    assert [(line.text, line.comparison and line.comparison.verdict) for line in lines] == [
        ("digits-cnn infer, float32, batch 1", None),
        ("torch", None),
        ("jax", "EQUIVALENT"),
        ("digits-cnn infer, float32, batch 32", None),
        ("torch", None),
        ("jax", "EQUIVALENT"),
        ("digits-cnn, float32, batch 64", None),
        ("torch", None),
        ("jax", "INVALID"),
    ]
    picture = summary_plot.make_picture([typed(make_requests()), typed(make_result(id="x", comparisons=[invalid]))])
    assert isinstance(picture, Picture)
    drawn = figures.draw(picture, "svg").decode()
    assert "Step times or request times relative to the baseline's" in drawn
    assert "\N{EN DASH} INVALID" in drawn
    assert drawn.count("<!-- baseline -->") == 3
