"""Pictures show the result's figures or say why there are none. They are the same bytes every time."""

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from compare.report import figures, matrix, palette, svg
from compare.report.plots import (
    loss_plot,
    memory_plot,
    ratio_plot,
    step_plot,
    summary_plot,
    telemetry_plot,
    throughput_plot,
)
from compare.report.plots.canvas import FONT_POINTS, Absent, Picture
from compare.reproduce import stored_result
from compare.studies import tune_picture
from compare.studies.tune import Trial, Tuning
from tests.fakebackend.plans import ROOT
from tests.unit import stored
from tests.unit.result_factory import make_comparison, make_contender, make_result, make_watched, typed


def _drawn(found: Picture | Absent) -> Any:
    assert isinstance(found, Picture)
    return found.draw()


def _texts(found: Picture | Absent) -> str:
    assert isinstance(found, Picture)
    root = ElementTree.fromstring(figures.draw(found, "svg", text=True))
    return "\n".join("".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text"))


def test_the_ratio_picture_shows_interval_rounds_and_verdict() -> None:
    result = stored.result("faster")
    picture = ratio_plot.make_picture([typed(result)])
    (axes,) = _drawn(picture).axes
    ratio = result["comparisons"][0]["ratio"]
    a, b = (each["step_seconds"]["samples"] for each in result["contenders"])
    lines = [list(line.get_xdata()) for line in axes.get_lines()]
    assert [ratio["low"], ratio["high"]] in lines
    assert [ratio["estimate"]] in lines
    assert [median(y) / median(x) for x, y in zip(a, b, strict=True)] in lines
    assert "jax / torch:stock  0.620 (0.616 to 0.625)  FASTER" in _texts(picture)


RATIOS = [(0.251, 0.246, 0.256), (1.015, 1.008, 1.023), (7.3, 6.6, 8.1), (0.03, 0.028, 0.033), (1.0, 1.0, 1.0)]


def _of_ratio(estimate: float, low: float, high: float, **changes: Any) -> Any:
    ratio = {"estimate": estimate, "low": low, "high": high, "confidence": 0.95}
    jax = make_contender("jax", 2.5e-3 * estimate)
    return make_result(contenders=[make_contender(), jax], comparisons=[make_comparison(ratio=ratio, **changes)])


@pytest.mark.parametrize("ratio", RATIOS)
def test_ticks_bracket_all_that_is_drawn(ratio: tuple[float, float, float]) -> None:
    (axes,) = _drawn(ratio_plot.make_picture([typed(_of_ratio(*ratio))])).axes
    left, right = axes.get_xlim()
    assert left <= min(axes.get_xticks()) <= min(ratio)
    assert max(ratio) <= max(axes.get_xticks()) <= right
    assert 2 <= len(axes.get_xticks()) <= 8


def test_rows_lie_below_one_another_in_their_order() -> None:
    (axes,) = _drawn(ratio_plot.make_picture([typed(_of_ratio(*ratio)) for ratio in RATIOS[:3]])).axes
    diamonds = [line for line in axes.get_lines() if line.get_marker() == "D"]
    assert [line.get_xdata()[0] for line in diamonds] == [estimate for estimate, _, _ in RATIOS[:3]]
    places = [float(line.get_ydata()[0]) for line in diamonds]
    bottom, top = axes.get_ylim()
    assert top > places[0] > places[1] > places[2] > bottom


@pytest.mark.parametrize("count", [1, 3])
def test_a_row_s_words_stand_clear_of_the_line_at_1_and_the_margin(count: int) -> None:
    figure = _drawn(ratio_plot.make_picture([typed(_of_ratio(1.015, 1.008, 1.023))] * count))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    words = [text.get_window_extent() for text in axes.texts]
    marks = [mark.get_window_extent() for mark in axes.collections]
    assert (len(words), len(marks)) == (count, 2 * count)
    assert not any(mark.y0 < word.y1 and word.y0 < mark.y1 for mark in marks for word in words)


def test_rounds_that_are_void_have_no_ratio() -> None:
    result = make_result(voided=[{"round": 2, "reason": "x"}, {"round": 5, "reason": "x"}])
    for number in (2, 5):
        result["contenders"][1]["step_seconds"]["samples"][number - 1] = [1.0] * 3
    found = ratio_plot.round_ratios(typed(result), typed(result).comparisons[0])
    assert (len(found), max(found) < 1) == (8, True)


def test_no_ratio_is_drawn_of_what_is_invalid() -> None:
    invalid = make_comparison(verdict="INVALID")
    absent = ratio_plot.make_picture([typed(make_result(comparisons=[invalid]))])
    assert isinstance(absent, Absent)
    assert "the semantic gate failed" in absent.reason
    both = make_result(
        contenders=[make_contender(), make_contender("jax"), make_contender("flax")],
        comparisons=[invalid, make_comparison("flax", "SLOWER")],
    )
    assert "jax" not in _texts(ratio_plot.make_picture([typed(both)]))
    steps_picture = step_plot.make_picture(typed(make_result(comparisons=[invalid])))
    assert isinstance(steps_picture, Picture)
    assert "their times must not be compared" in steps_picture.caption


def test_a_ratio_beyond_all_bounds_is_drawn_as_an_arrow() -> None:
    ratio = {"estimate": 1.1, "low": 1e-200, "high": 1e300, "confidence": 0.95}
    (axes,) = _drawn(
        ratio_plot.make_picture(
            [typed(make_result(comparisons=[make_comparison(verdict="INCONCLUSIVE", ratio=ratio)]))]
        )
    ).axes
    assert {"<", ">"} <= {line.get_marker() for line in axes.get_lines()}
    assert axes.get_xlim()[1] < 1e4


def test_several_results_share_one_ratio_picture() -> None:
    found = [
        stored.result("faster"),
        make_result(spec={"workload": "cifar-cnn", "precision": "bfloat16"}),
        make_result(spec={"devices": 2}),
    ]
    texts = _texts(ratio_plot.make_picture(list(map(typed, found))))
    assert "digits-cnn float32, batch 64\njax / torch:stock" in texts
    assert "cifar-cnn bfloat16, batch 64\njax / torch" in texts
    assert "digits-cnn float32, 2 devices, batch 64\njax / torch" in texts


def test_ratios_of_requests_name_their_batch() -> None:
    sizes = [make_comparison(batch_size=size) for size in (1, 32)]
    requests = make_result(spec={"task": "infer", "batch_sizes": [1, 32], "batch_size": 32}, comparisons=sizes)
    picture = ratio_plot.make_picture([typed(requests)])
    assert isinstance(picture, Picture)
    assert picture.title == "Ratio of request times with its interval"
    texts = _texts(picture)
    assert "batch 1: jax / torch" in texts
    assert "batch 32: jax / torch" in texts
    assert "request times / baseline's" in texts


def test_throughput_against_latency_has_plain_ticks() -> None:
    (requests,) = stored_result.load_all(ROOT / "benchmarks" / "h200" / "requests-resnet50-bfloat16.zip")
    figure = _drawn(throughput_plot.make_picture(requests))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for axis in (axes.xaxis, axes.yaxis):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        assert len(labels) > 1
        assert all(float(label.replace(",", "")) > 0 for label in labels)


def test_batch_sizes_of_close_points_stand_apart() -> None:
    (requests,) = stored_result.load_all(ROOT / "benchmarks" / "h200" / "requests-resnet50-bfloat16.zip")
    figure = _drawn(throughput_plot.make_picture(requests))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text() == "256"]
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])


def test_a_verdict_has_one_colour_in_all_pictures() -> None:
    ratios = {"FASTER": (0.5, 0.4, 0.6), "SLOWER": (1.8, 1.7, 1.9)}
    results = [typed(_of_ratio(*ratio, verdict=verdict)) for verdict, ratio in ratios.items()]
    pictures = (ratio_plot.make_picture(results), summary_plot.make_picture(results))
    colours = [
        [line.get_color() for line in axes.get_lines() if line.get_marker() == "D"]
        for axes in (_drawn(picture).axes[0] for picture in pictures)
    ]
    assert colours[0] == colours[1]
    assert len(set(colours[0])) == 2


def test_where_a_ratio_is_of_is_on_a_line_of_its_own_where_that_is_long() -> None:
    sides = {"baseline": "torch:tuned+ddp", "contender": "torch:compiled+ddp"}
    long = make_result(spec={"workload": "cifar-resnet18"}, comparisons=[make_comparison(**sides)])
    texts = _texts(ratio_plot.make_picture(list(map(typed, [long, make_result()]))))
    assert "cifar-resnet18 float32, batch 64\ntorch:compiled+ddp / torch:tuned+ddp\n" in texts
    assert "digits-cnn float32, batch 64\njax / torch\n" in texts


def test_step_times_are_those_of_every_block_with_medians_and_voids() -> None:
    result = stored.result("void")
    figure = _drawn(step_plot.make_picture(typed(result)))
    assert len(figure.axes) == 2
    for axes, contender in zip(figure.axes, result["contenders"], strict=True):
        samples = contender["step_seconds"]["samples"]
        (dots,) = axes.get_lines()
        scale = 1e-3
        assert list(dots.get_ydata()) == [seconds / scale for blocks in samples for seconds in blocks]
        places = np.array(dots.get_xdata())
        assert (np.round(places) == np.repeat(np.arange(1, 6), 6)).all(), "a round's blocks lie about its number"
        assert (np.diff(places) > 0).all()
        (medians,) = axes.collections
        found = [segment[0][1] for segment in medians.get_segments()]
        assert found == pytest.approx([median(blocks) / scale for blocks in samples])
        assert len(axes.patches) == len(result["voided"])
    assert _texts(step_plot.make_picture(typed(result))).count("void") == 10


def test_memory_is_drawn_by_definition_with_its_values() -> None:
    contenders = [make_contender(), make_contender("jax")]
    contenders[1]["memory"] |= {"static_bytes": 5 * 2**20, "process_bytes": -3 * 2**20}
    picture = memory_plot.make_picture(typed(make_result(contenders=contenders)))
    (axes,) = _drawn(picture).axes
    assert sorted(patch.get_width() for patch in axes.patches) == [-3, 5, 12, 12, 24, 24, 300]
    texts = _texts(picture)
    assert "torch: not available" in texts
    assert "jax 5.0" in texts
    assert isinstance(picture, Picture)
    assert "Static: the compiler's own plan" in picture.caption


def test_what_is_said_at_the_longest_bar_is_within_the_picture() -> None:
    with matplotlib.rc_context({"font.size": FONT_POINTS}):
        figure = _drawn(memory_plot.make_picture(typed(make_result())))
        figure.draw_without_rendering()
    (axes,) = figure.axes
    assert max(text.get_window_extent().x1 for text in axes.texts) <= figure.bbox.x1


def test_a_distance_goes_on_after_a_step_without_a_loss() -> None:
    result = stored.result("agree")
    result["agreement"]["trajectory"]["jax"]["loss"][1] = None
    _, bottom = _drawn(loss_plot.make_picture(typed(result))).axes
    distance = bottom.get_lines()[-1].get_ydata()
    assert np.isfinite(distance[2:]).all()
    assert (np.diff(distance[2:]) >= 0).all()


def test_losses_come_with_their_envelope_after_agree() -> None:
    result = stored.result("agree")
    picture = loss_plot.make_picture(typed(result))
    top, bottom = _drawn(picture).axes
    trajectory = result["agreement"]["trajectory"]
    for name, line in zip(trajectory, top.get_lines(), strict=True):
        assert list(line.get_ydata()) == trajectory[name]["loss"]
    bands = [band.get_paths()[0].vertices for band in top.collections]
    for name, band in zip(trajectory, bands, strict=True):
        loss, width = trajectory[name]["loss"][-1], trajectory[name]["envelope"][-1]
        ends = band[band[:, 0] == len(trajectory[name]["loss"]), 1]
        assert {float(ends.min()), float(ends.max())} == {loss - width, loss + width}
    distance = np.maximum.accumulate(np.abs(np.subtract(*(each["loss"] for each in trajectory.values()))))
    assert list(bottom.get_lines()[-1].get_ydata()) == list(distance)
    assert all(text in _texts(picture) for text in ("envelope: torch", "envelope: jax", "jax - torch"))


def test_the_loss_of_a_single_epoch_is_a_point() -> None:
    training = {"loss": [2.3], "train_accuracy": 0.1, "test_accuracy": 0.1}
    contenders = [make_contender(training=training), make_contender("jax", training=training)]
    (axes,) = _drawn(loss_plot.make_picture(typed(make_result(contenders=contenders)))).axes
    assert [(list(line.get_ydata()), line.get_marker()) for line in axes.get_lines()] == [([2.3], "o")] * 2


def test_losses_that_are_alike_but_for_rounding_are_drawn_so() -> None:
    sides = [make_contender(), make_contender("jax")]
    for side, loss in zip(sides, (1.18716, 1.1871601), strict=True):
        side["training"] = {"loss": [loss], "train_accuracy": 0.1, "test_accuracy": 0.1}
    picture = loss_plot.make_picture(typed(make_result(contenders=sides)))
    (axes,) = _drawn(picture).axes
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(0.02 * 1.18716, rel=1e-3)
    ticks = [text for text in _texts(picture).splitlines() if text.startswith("1.1")]
    assert len(ticks) == len(set(ticks)) > 2


def test_losses_without_an_envelope_say_so_and_where_they_end() -> None:
    lost = {"loss": [2.3, 0.5, None, None], "train_accuracy": None, "test_accuracy": None}
    picture = loss_plot.make_picture(
        typed(make_result(contenders=[make_contender(), make_contender("jax", training=lost)]))
    )
    assert isinstance(picture, Picture)
    assert "Only samestep agree measures the one-ulp envelope" in picture.caption
    assert "jax, not finite from 3" in _texts(picture)


def test_telemetry_is_drawn_over_time_with_void_rounds_shaded() -> None:
    result = make_watched(voided=(3, 7))
    assert telemetry_plot.find_spans(typed(result))[3] == (3, 3.5)
    clock, power = _drawn(telemetry_plot.make_picture(typed(result))).axes
    assert list(power.get_lines()[0].get_ydata()) == result["telemetry"]["samples"]["power_watts"]
    for axes in (clock, power):
        shaded = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches]
        assert shaded == [(3, 3.5), (7, 7.5)]
    texts = _texts(telemetry_plot.make_picture(typed(result)))
    assert "chip" not in texts, "a figure that was never read has no panel"
    assert texts.count("void") == 4
    result["spec"]["rotation"] = 2
    clock, _ = _drawn(telemetry_plot.make_picture(typed(result))).axes
    assert [patch.get_x() for patch in clock.patches] == [3, 7]
    result["voided"][0]["round"] = 4  # which was on the second GPU
    clock, _ = _drawn(telemetry_plot.make_picture(typed(result))).axes
    assert [patch.get_x() for patch in clock.patches] == [7]
    assert "void\n1\n3\n5\n7\n9\n" in _texts(telemetry_plot.make_picture(typed(result))), (
        "the rounds on the first GPU alone"
    )


def test_the_line_of_telemetry_is_broken_where_samples_were_left_out() -> None:
    result = make_watched()
    samples = result["telemetry"]["samples"]
    samples["seconds"] = [0.0, 0.1, *(each + 60.0 for each in samples["seconds"][2:])]
    whole = telemetry_plot.make_picture(typed(result))
    result["telemetry"]["left_out"] = 600
    broken = telemetry_plot.make_picture(typed(result))
    drawn = _drawn(broken).axes[1].get_lines()[0]
    assert [value == value for value in drawn.get_ydata()[:4]] == [True, True, False, True]
    assert list(_drawn(whole).axes[1].get_lines()[0].get_ydata()) == samples["power_watts"]
    assert isinstance(broken, Picture)
    assert "left out" in broken.caption


def test_on_a_cpu_telemetry_is_other_programs_load() -> None:
    result = stored.result("void")
    (axes,) = _drawn(telemetry_plot.make_picture(typed(result))).axes
    bars = [patch for patch in axes.patches if patch.get_width() == pytest.approx(0.6)]
    assert [bar.get_height() for bar in bars] == result["telemetry"]["foreign_cores"]
    assert len(axes.patches) - len(bars) == 5


def test_a_load_far_above_what_voids_a_round_is_within_the_picture() -> None:
    telemetry_of = make_result()["telemetry"] | {"foreign_cores": [0.1, 7.5]}
    (axes,) = _drawn(telemetry_plot.make_picture(typed(make_result(telemetry=telemetry_of)))).axes
    assert axes.get_ylim()[1] > 7.5


def test_load_is_that_of_contenders_that_were_not_timed_where_that_is_more() -> None:
    seen = {"foreign_cores": [0.1, 0.3, 0.0, None], "idle_cores": [0.2, 0.1, None, None]}
    (axes,) = _drawn(telemetry_plot.make_picture(typed(make_result(telemetry=make_result()["telemetry"] | seen)))).axes
    bars = [patch for patch in axes.patches if patch.get_width() == pytest.approx(0.6)]
    assert [bar.get_height() for bar in bars][:3] == [0.2, 0.3, 0.0]


def test_rounds_without_any_load_are_seen() -> None:
    telemetry_of = make_result()["telemetry"] | {"foreign_cores": [0.0, 0.001, 0.11, None]}
    (axes,) = _drawn(telemetry_plot.make_picture(typed(make_result(telemetry=telemetry_of)))).axes
    marks = [line for line in axes.get_lines() if line.get_marker() == "_"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in marks] == [([1, 2], [0.0, 0.001])]
    assert not marks[0].get_clip_on(), "half of a mark at 0 lies below the axis"


def test_why_nothing_is_drawn() -> None:
    agree = stored.result("agree")
    untold = make_watched()
    untold["telemetry"] = untold["telemetry"] | {"reason": "no NVML: not supported", "samples": {}}
    unknown = make_result(telemetry=make_result()["telemetry"] | {"foreign_cores": [None]})
    nothing = [make_contender(memory=None, training=None, step_seconds=None)]
    empty = make_result(contenders=nothing, comparisons=[])
    many = make_contender()["step_seconds"] | {"samples": [[1.0]] * 1001, "windows": [[[0, 1]]] * 1001}
    found = [
        ratio_plot.make_picture([typed(agree)]),
        step_plot.make_picture(typed(agree)),
        telemetry_plot.make_picture(typed(agree)),
        telemetry_plot.make_picture(typed(untold)),
        telemetry_plot.make_picture(typed(unknown)),
        memory_plot.make_picture(typed(empty)),
        loss_plot.make_picture(typed(empty)),
        step_plot.make_picture(typed(make_result(contenders=[make_contender(step_seconds=many)], comparisons=[]))),
    ]
    reasons = [each.reason for each in found if isinstance(each, Absent)]
    assert [reason.split(":")[0] for reason in reasons] == [
        "nothing was timed",
        "no steps were timed",
        "nothing was timed",
        "no NVML",
        "the load of other programs was not recorded",
        "no memory figure was measured",
        "no training loss was recorded, or none is finite",
        "1,001 blocks of 1,001 rounds are too many to draw; the CSV file has them",
    ]


@pytest.mark.slow
def test_no_name_is_taken_for_a_formula_and_long_ones_are_cut() -> None:
    names = ["$\\frac{1$", "a" * 500, "\N{CJK UNIFIED IDEOGRAPH-4E2D}\x1b\n"]
    result = make_result(
        contenders=[make_contender(name) for name in names],
        comparisons=[make_comparison(names[1], baseline=names[0]), make_comparison(names[2], baseline=names[0])],
    )
    for part in matrix.report([typed(result)]).pictures().values():
        figures.draw(part, "pdf")
        assert max(map(len, _texts(part).splitlines())) < 120
    assert "$\\frac{1$" in _texts(step_plot.make_picture(typed(result)))


@pytest.mark.slow
def test_captions_state_n_interval_and_hardware() -> None:
    result = make_result(voided=[{"round": 2, "reason": "x"}])
    for name, picture in matrix.report([typed(result)]).pictures().items():
        assert "digits-cnn in float32, batch 64, on cpu (Example CPU)" in picture.basis
        assert "n = " in picture.basis
        if name in ("ratio", "steps", "telemetry"):
            assert "n = 9 rounds of fresh processes (1 of 10 rounds void), 95 % intervals" in picture.basis
        for kind in figures.KINDS:
            assert picture.title.encode() in figures.draw(picture, kind)


def test_a_picture_in_a_page_takes_the_pages_colours_and_has_no_inline_style() -> None:
    for name, picture in matrix.report([typed(make_watched(voided=(3,)))]).pictures().items():
        text = str(svg.make_inline(figures.draw(picture, "svg", text=True), f"{name}-", picture.title))
        root = ElementTree.fromstring(text)
        colours = {each.get(which) for each in root.iter() for which in ("fill", "stroke")} - {None, "none"}
        assert colours <= {f"var(--{name})" for name in palette.TONES}
        assert "var(--ink)" in colours
        assert not any("style" in each.attrib or each.tag in ("style", "script") for each in root.iter())
        ids = [each.get("id") for each in root.iter() if each.get("id")]
        assert len(ids) == len(set(ids))
        used = {each.get("href", "").removeprefix("#") for each in root.iter("use")}
        assert used
        assert used <= set(ids)
        assert all(str(each).startswith(f"{name}-") for each in ids)


def _luminance(colour: str) -> float:
    parts = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(a: str, b: str) -> float:
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_in_every_colour_has_a_contrast_of_4_5(scheme: str) -> None:
    tones: Mapping[str, str] = {name: getattr(tone, scheme) for name, tone in palette.TONES.items()}
    for name, tone in tones.items():
        if name not in ("paper", "rule", "band", "void"):
            assert _contrast(tone, tones["paper"]) >= 4.5, name
    for ground in ("band", "void"):
        assert _contrast(tones["ink"], tones[ground]) >= 4.5


def test_a_page_can_tell_every_colour_of_a_picture() -> None:
    lights = [tone.light for tone in palette.TONES.values()]
    assert all(a != b for a, b in itertools.combinations(lights, 2))


_DIGEST = """
import hashlib, sys
from pathlib import Path
from compare.results import result_file
from compare.report import figures, matrix
from compare.report.formats import csv, html, latex, markdown
found = [result_file.read(Path(each)) for each in sys.argv[1:]]
report = matrix.report(found)
parts = [html.render(report), markdown.render(report, {}), latex.render(report, {}), csv.render(found)]
data = [part.encode() for part in parts]
data += [figures.draw(each, kind) for each in report.pictures().values() for kind in figures.KINDS]
print(hashlib.sha256(b"".join(data)).hexdigest())
"""


@pytest.mark.slow
def test_every_format_is_the_same_bytes_in_another_process_and_second() -> None:
    paths = [str(stored.path(name)) for name in ("faster", "agree")]
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST, *paths],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "TZ": zone, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 2 * hashlib.sha256().digest_size


def test_no_name_in_a_picture_tells_more_of_its_corners_than_is_drawn() -> None:
    picture = ratio_plot.make_picture([typed(stored.result("faster"))])
    assert isinstance(picture, Picture)
    root = ElementTree.fromstring(figures.draw(picture, "svg"))
    regions = [each.attrib["id"] for each in root.iter("{http://www.w3.org/2000/svg}clipPath")]
    assert regions == [f"clip-{number}" for number in range(1, 1 + len(regions))]
    used = {each.attrib["clip-path"] for each in root.iter() if "clip-path" in each.attrib}
    assert used == {f"url(#{name})" for name in regions} != set()


def test_a_backend_that_is_not_there_is_not_asked_for(tmp_path: Path) -> None:
    variables = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "PATH": ""}  # as in a notebook
    asked = [sys.executable, "-m", "compare", "report", str(stored.path("agree")), "--figures", str(tmp_path)]
    subprocess.run(asked, cwd=ROOT, env=variables, capture_output=True, check=True)
    assert (tmp_path / "loss.svg").exists()


def test_names_of_long_tunings_break_and_stay_different() -> None:
    names = ["torch:stock+channels-last+fused-optimizer", "torch:stock+channels-last+fused-optimizer+kept-heap"]
    trials = tuple(
        Trial(contender=name, status="ok", reason=None, step_seconds=0.001, ratio=1.0, agreement=None) for name in names
    )
    found = Tuning(
        winner={},
        trials=trials,
        workload="digits-cnn",
        device="cpu",
        precision="float32",
        task="train",
        batch_size=64,
        objective="time",
        seconds=1.0,
        ended={},
        gains={},
    )
    (axes,) = _drawn(tune_picture.make_picture(found)).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [label.replace("\n", "") for label in labels] == names
    assert max(len(line) for label in labels for line in label.split("\n")) < 40
