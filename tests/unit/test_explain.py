"""The explanation of a step: kernels of stored traces, tables, limits and findings, all without a framework."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.base import profiles
from compare.base.operation_counts import CONVOLUTION, FORWARD, PRODUCT, Axis, Operation, count_convolution
from compare.base.profiles import Peaks, Profile
from compare.explain import findings, host_events, inductor_source, kernels, step_table, timeline
from compare.explain.findings import Side
from compare.explain.host_events import HostEvents
from compare.explain.kernels import Kernel
from compare.explain.step_table import StepTable, Work
from compare.explain.work_classes import CLASSES, IDLE, LAYOUT, NORMALISATION, OPTIMIZER, UNATTRIBUTED
from compare.results.explanation import Finding

STORED = Path(__file__).parent.parent / "data" / "explain"
H200 = Peaks(4.2e12, 7e14)
STEP_SECONDS = 1e-3


def stored(name: str) -> Profile:
    """Return one step of cifar-cnn in bfloat16 on an H200, as a framework's profiler saw it."""
    return profiles.read(gzip.decompress((STORED / f"{name}.json.gz").read_bytes()).decode())


def milliseconds(profile: Profile) -> dict[str, float]:
    found = step_table.read_kernels(profile)
    totals: defaultdict[str, float] = defaultdict(float)
    for kernel, seconds in zip(found, kernels.share_time(found), strict=True):
        totals[kernel.work] += 1e3 * seconds / profile.steps
    return dict(totals)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "cifar-torch-stock",
            {
                "convolution-forward": 0.208,
                "convolution-data-gradient": 0.158,
                "convolution-weight-gradient": 0.379,
                "normalisation": 6.29,
                "pooling": 0.320,
                "layout-and-copy": 0.610,
                "optimizer": 0.055,
            },
        ),
        (
            "cifar-torch-tuned",
            {"convolution-forward": 0.152, "convolution-weight-gradient": 0.260, "normalisation": 0.327},
        ),
        (
            "cifar-jax-tuned",
            {
                "convolution-forward": 0.195,
                "convolution-data-gradient": 0.129,
                "convolution-weight-gradient": 0.305,
                "matrix-product": 0.0044,
            },
        ),
    ],
)
def test_every_kernel_of_a_stored_step_has_its_class(name: str, expected: dict[str, float]) -> None:
    totals = milliseconds(stored(name))
    assert UNATTRIBUTED not in totals
    for work, value in expected.items():
        assert totals[work] == pytest.approx(value, rel=0.02), work


def test_layers_of_a_compiled_step_come_from_the_nodes_of_its_program() -> None:
    found = step_table.read_kernels(stored("cifar-torch-tuned"))
    convolutions = {(kernel.layer, kernel.direction) for kernel in found if kernel.work.startswith("convolution")}
    for block in range(1, 6):
        for direction in ("forward", "data-gradient", "weight-gradient"):
            assert (f"blocks.{block}.conv", direction) in convolutions
    assert ("blocks.0.conv", "data-gradient") not in convolutions  # images need no gradient
    steps = stored("cifar-torch-tuned").steps
    outside = [kernel for kernel in found if not kernel.layer and kernel.direction == "data-gradient"]
    # Only the loss is outside. Without data flow it would be 0.08 ms.
    assert sum(kernel.end - kernel.begin for kernel in outside) / steps < 0.03e-3
    norms = {kernel.layer for kernel in found if kernel.work == NORMALISATION}
    assert {f"blocks.{block}.norm" for block in range(6)} <= norms


def test_a_captured_step_gets_its_classes_from_the_uncaptured_one() -> None:
    uncaptured, captured = stored("cifar-torch-tuned"), stored("cifar-torch-tuned-captured")
    alone = milliseconds(captured)
    assert alone[UNATTRIBUTED] > 0.1  # a graph hides what its kernels are for
    table = step_table.build(1.02e-3, uncaptured, captured, (), H200)
    assert table.attributed_share > 0.995
    for work, seconds in table.uncaptured.items():
        assert table.classes[work].seconds == pytest.approx(seconds, abs=3e-5), work


def test_a_loop_that_the_profiler_does_not_see_leaves_the_uncaptured_step() -> None:
    uncaptured = stored("cifar-torch-tuned")
    captured = replace(uncaptured, steps=8)  # an eighth of the kernels a step
    table = step_table.build(1.1e-3, uncaptured, captured, (), H200)
    assert not table.uncaptured
    assert table.busy_seconds == pytest.approx(1.006e-3, rel=0.01)


@pytest.mark.parametrize("name", ["cifar-torch-stock", "cifar-torch-tuned", "cifar-jax-tuned"])
def test_the_classes_sum_to_the_step(name: str) -> None:
    for step in (12e-3, 1e-4):
        table = step_table.build(step, stored(name), None, (), H200)
        total = sum(work.seconds for work in table.classes.values())
        assert total == pytest.approx(step + table.excess_seconds)
        assert (table.excess_seconds > 0) == (step < 1e-3)


def test_kernels_that_the_profiler_lengthens_are_scaled_to_the_timed_step() -> None:
    table = step_table.build(0.96e-3, stored("cifar-torch-tuned"), None, (), H200)
    assert table.scale == pytest.approx(0.954, abs=0.01)
    assert sum(work.seconds for work in table.classes.values()) == pytest.approx(0.96e-3)
    assert table.excess_seconds == pytest.approx(0, abs=1e-12)


def test_kernels_that_run_together_share_the_time() -> None:
    alone, beside = Kernel("a", 0, 4, "1", LAYOUT), Kernel("b", 2, 6, "2", LAYOUT)
    assert kernels.share_time([alone, beside]) == [3.0, 3.0]
    assert kernels.share_time([replace(alone, end=0.0)]) == [0.0]


def test_one_disturbed_step_of_a_cpu_does_not_count() -> None:
    steps = [Kernel("a", begin, begin + seconds, "1", LAYOUT) for begin, seconds in ((0, 1), (10, 7), (20, 1))]
    assert kernels.take_medians(steps, [1, 7, 1], 3) == [1, 1, 1]
    assert kernels.find_busy_share(steps, [1, 7, 1], 3) == pytest.approx(0.4)  # of the two whole steps
    assert kernels.take_medians([*steps[:2], replace(steps[2], name="b")], [1, 7, 1], 3) == [1, 7, 1]


@pytest.mark.parametrize(
    ("axis", "products"),
    [
        (Axis(size=8, output=8, kernel=3, before=1), 3 * 8 - 2),  # the two outer products meet padding
        (Axis(size=8, output=6, kernel=3), 18),
        (Axis(size=8, output=4, kernel=3, stride=2, before=1), 3 * 4 - 1),
        (Axis(size=4, output=8, kernel=3, before=1, input_dilation=2), 3 * 4 - 1),  # its data gradient
        (Axis(size=8, output=3, kernel=4, before=1, kernel_dilation=2), 3 * 4 - 1),  # and its weight gradient
    ],
)
def test_products_with_padding_and_zeros_do_not_count(axis: Axis, products: int) -> None:
    assert axis.count_products() == products
    assert count_convolution(2, 3, 5, [axis, axis]) == 2 * 2 * 3 * 5 * products**2


def test_operations_stand_in_their_class_and_layer() -> None:
    operations = [
        Operation("blocks.1.conv", CONVOLUTION, FORWARD, 7),
        Operation("dense", PRODUCT, FORWARD, 5),
    ]
    table = step_table.build(1e-3, stored("cifar-torch-tuned"), None, operations, H200)
    assert table.classes["convolution-forward"].flops == 7
    assert table.classes["matrix-product"].flops == 5
    assert table.layers["blocks.1.conv", "forward"].flops == 7


@pytest.mark.parametrize(
    ("seconds", "count", "size", "flops", "share", "limit"),
    [
        (1e-3, 1, 2.1e9, 0, 0.5, "bytes"),
        (1e-3, 1, 0, 3.5e11, 0.5, "arithmetic"),
        (1e-3, 500, 1e6, 0, 2.4e-4, "launches"),
        (1e-3, 1, 9e9, 0, 1.0, "bytes"),
        (1e-3, 1, 0, 0, None, None),
        (0.0, 0, 1, 1, None, None),
    ],
)
def test_a_share_of_the_possible_has_its_limit(
    seconds: float, count: float, size: float, flops: float, share: float | None, limit: str | None
) -> None:
    found, cause = step_table.judge_roofline(seconds, count, size, flops, H200)
    assert cause == limit
    assert found == (None if share is None else pytest.approx(share, rel=0.01))


def test_a_call_in_a_program_has_the_nodes_of_its_comment() -> None:
    source = """# AOT ID: ['0_backward']
    def call(self, args):
        buf0 = empty_strided_cuda((4, 8), (8, 1), torch.bfloat16)
        # Topologically Sorted Source Nodes: [relu, conv2d], Original ATen: [aten.relu, aten.convolution]
        triton_poi_fused_convolution_relu_0.run(buf0, 32, stream=stream0)
        # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.mm]
        extern_kernels.mm(buf0, buf0, out=buf1)
"""
    program = inductor_source.read(source, {"conv2d": "stem.conv", "linear": "dense"})
    assert program.is_backward
    (site,) = program.sites["triton_poi_fused_convolution_relu_0"]
    assert (tuple(site.operations), tuple(site.layers), site.bytes) == (("relu", "convolution"), ("stem.conv",), 64)
    assert tuple(program.sites["mm"][0].layers) == ("dense",)


# The planted causes, each as it changes a table. benchmarks/planted_causes.py plants them on a GPU.


def side(name: str = "torch:x", **changes: Any) -> Side:
    """Return a contender with a plain step of 1 ms, changed."""
    seconds = {"convolution-forward": 3e-4, NORMALISATION: 4e-4, "pointwise": 1e-4, OPTIMIZER: 5e-5, LAYOUT: 1e-5}
    seconds |= changes.pop("seconds", {})
    classes = {work: Work(seconds.get(work, 0.0), changes.pop(f"kernels_{work}", 3)) for work in CLASSES}
    step = changes.pop("step", max(STEP_SECONDS, sum(seconds.values())))
    classes[IDLE].seconds = step - sum(seconds.values())
    layers = {("conv", "forward"): Work(3e-4), ("norm", "forward"): Work(4e-4), ("mine", "forward"): Work(5e-5)}
    layers |= changes.pop("layers", {})
    table = StepTable(step, classes, layers, {}, changes.pop("casts", 0.0), 0.0, 1.0, (), 1)
    knobs = {
        "compile": True,
        "channels-last": True,
        "fused-optimizer": True,
        "kernel-search": True,
        "graph-capture": True,
    } | changes.pop("knobs", {})
    plain = Side(name, name.partition(":")[0], table, knobs, {"tf32": True}, 1e-4, HostEvents(), "cuda")
    return replace(plain, **changes)


CAUSES: dict[str, tuple[dict[str, Any], str | None, str, float]] = {
    "a layout change": (
        {"seconds": {LAYOUT: 3e-4}, "knobs": {"channels-last": False}},
        "channels-last",
        "memory order",
        -0.29,
    ),
    "an extra cast to float32": ({"seconds": {LAYOUT: 2.1e-4}, "casts": 2e-4}, None, "dtype", -0.2),
    "TF32 off on one side": (
        {"seconds": {"convolution-forward": 9e-4}, "settings": {"tf32": False}},
        None,
        "TF32",
        -0.6,
    ),
    "no search for kernels": (
        {"seconds": {"convolution-forward": 6e-4}, "knobs": {"kernel-search": False}},
        "kernel-search",
        "no search",
        -0.3,
    ),
    "a sleep of the host": ({"step": 3e-3, "host": HostEvents(gap_seconds=2e-3)}, None, "sleep", -2.0),
    "a wait within the step": (
        {"step": 1.5e-3, "host": HostEvents({"cudaStreamSynchronize": 2.0})},
        None,
        "waits for the device",
        -0.64,
    ),
    "an unfused optimizer": (
        {"seconds": {OPTIMIZER: 3e-4}, "kernels_optimizer": 90, "knobs": {"fused-optimizer": False}},
        "fused-optimizer",
        "the update runs 90 kernels",
        -0.25,
    ),
    "a slow layer": (
        {"seconds": {"pointwise": 6e-4}, "layers": {("mine", "forward"): Work(5.5e-4)}},
        None,
        "layer mine",
        -0.5,
    ),
    "a slow layer of many kernels": (
        {"seconds": {"pointwise": 6e-4}, "layers": {("mine", "forward"): Work(5.5e-4)}, "knobs": {"compile": False}},
        "compile",
        "mostly in layer mine",
        -0.5,
    ),
    "Python": (
        {"step": 3e-3, "host_seconds": 2.9e-3, "knobs": {"graph-capture": False}},
        "graph-capture",
        "Python limits the step",
        -2.14,
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_found_and_named(cause: str) -> None:
    changes, knob, words, gain = CAUSES[cause]
    found = findings.find([side(**changes), side("jax:y")])
    own = [finding for finding in found if words in finding.text]
    assert [(finding.contender, finding.knob) for finding in own] == [("torch:x", knob)]
    assert own[0].predicted_milliseconds == pytest.approx(gain, abs=0.02)
    assert {finding.contender for finding in found} == {"torch:x"}


@pytest.mark.parametrize("number", range(10))
def test_a_clean_pair_has_no_finding(number: int) -> None:
    names = [NORMALISATION, "convolution-forward", "pointwise", OPTIMIZER, LAYOUT]
    noise = {name: 1 + 0.02 * ((number + place) % 5 - 2) for place, name in enumerate(names)}
    plain = side().table.classes
    moved = {name: plain[name].seconds * factor for name, factor in noise.items()}
    knobs = dict.fromkeys(("channels-last", "kernel-search", "fused-optimizer"), number % 2 == 0)
    assert findings.find([side(seconds=moved, knobs=knobs), side("jax:y")]) == []


def test_a_wait_counts_if_it_is_in_every_step() -> None:
    wait = {"name": "cudaStreamSynchronize", "cat": "cuda_runtime", "ts": 0.0, "dur": 1.0, "tid": "1", "args": {}}
    kernel = {"name": "k", "cat": "kernel", "ts": 0.0, "dur": 50.0, "tid": "7", "args": {}}
    late = {**kernel, "ts": 2050.0}
    later = {**kernel, "ts": 4100.0}
    profile = Profile("torch", "cuda", 2, [wait, wait, kernel, late, later])
    host = host_events.read(profile)
    assert host.waits == {"cudaStreamSynchronize": 1.0}
    assert host.gap_seconds == pytest.approx(2e-3)
    assert host_events.read(replace(profile, events=[wait, kernel])).waits == {}


@pytest.mark.parametrize(("places", "seconds"), [((1, 1, 1), 2e-3), ((1, 2, 0), 0.0)])
def test_a_gap_of_the_host_counts_where_every_step_has_it(places: tuple[int, int, int], seconds: float) -> None:
    now, events = 0.0, list[dict[str, Any]]()
    for place in places:  # each step has three operations, and a pause before one of them
        for number, name in enumerate(("aten::add", "aten::mul", "aten::sin")):
            now += 2000.0 if number == place else 0.0
            events.append({"name": name, "cat": "cpu_op", "ts": now, "dur": 10.0, "tid": "1", "args": {}})
            now += 10.0
    assert host_events.read(Profile("torch", "cpu", 3, events)).gap_seconds == pytest.approx(seconds)


def test_one_time_line_holds_both_contenders() -> None:
    trace = timeline.make({"torch:tuned": stored("cifar-torch-tuned"), "jax:tuned": stored("cifar-jax-tuned")})
    events = trace["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"torch:tuned", "jax:tuned"}
    assert {event["pid"] for event in events} == {1, 2}
    spans = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in spans) == 0
    assert all(event["cat"] in CLASSES for event in spans)
    json.dumps(trace, allow_nan=False)


def test_a_profile_survives_its_file() -> None:
    profile = stored("cifar-jax-tuned")
    assert profiles.read(profiles.write(profile)) == profile


def test_findings_are_sorted_by_their_forecast() -> None:
    both = {
        "seconds": {LAYOUT: 3e-4, OPTIMIZER: 7e-4},
        "kernels_optimizer": 90,
        "knobs": {"channels-last": False, "fused-optimizer": False},
    }
    found: list[Finding] = findings.find([side(**both), side("jax:y")])
    assert [finding.knob for finding in found] == ["fused-optimizer", "channels-last"]


def test_knobs_that_help_together_are_one_suggestion_beside_the_others() -> None:
    slow = {
        "seconds": {LAYOUT: 3e-4, "pointwise": 6e-4, OPTIMIZER: 3e-4},
        "kernels_optimizer": 90,
        "knobs": {"channels-last": False, "compile": False, "fused-optimizer": False},
    }
    both, other = findings.find([side(**slow), side("jax:y")])
    assert other.knob == "fused-optimizer"
    assert both.knob == "compile+channels-last"
    assert both.predicted_milliseconds == pytest.approx(-0.79, abs=0.02)
    assert "memory order" in both.text
    assert "compiler would fuse" in both.text


@pytest.mark.parametrize(
    ("changes", "knob"),
    [
        ({"host_seconds": 1.2e-3}, "channels-last+graph-capture"),
        ({"host_seconds": 5e-4}, "channels-last"),
        ({"host_seconds": 1.2e-3, "host": HostEvents({"cudaStreamSynchronize": 2.0})}, "channels-last"),
        ({"host_seconds": 1.2e-3, "knobs": {"channels-last": False}}, "channels-last"),
    ],
    ids=["slow Python", "fast Python", "a wait within the step", "captured already"],
)
def test_a_gain_that_python_would_hide_needs_captured_steps(changes: dict[str, Any], knob: str) -> None:
    plain = {"seconds": {LAYOUT: 6e-4}, "knobs": {"channels-last": False, "graph-capture": False}}
    (finding,) = findings.find([side(**(plain | changes)), side("jax:y")])
    assert finding.knob == knob
    assert ("Python took 1.2 ms" in finding.text) == ("graph-capture" in knob)
