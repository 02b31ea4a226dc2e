"""JAX's side reads settings back from XLA's flags. The last value of a flag counts."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from compare.machine import variables
from compare.settings import tunings
from jaxbackend.only import flags

GPU, CPU = SimpleNamespace(platform="gpu"), SimpleNamespace(platform="cpu")
BUFFERS, SEARCH = "--xla_gpu_enable_command_buffer", "--xla_gpu_autotune_level"
HIDING = "--xla_gpu_enable_latency_hiding_scheduler"
ORDER = "--xla_gpu_command_buffer_scheduling_mode"
OURS = f"{BUFFERS}=+CONVOLUTION,+WHILE"
ANSWERED = """
import sys
import jax
from compare.settings import tunings
from tests.parity import twins
knobs = tunings.resolve("jax", f"stock+inline-dispatch={sys.argv[1]}", "cpu", "cifar-cnn", task="infer")
session = twins.session("jax", "cifar-cnn", task="infer", precision="float32", knobs=knobs)
twins.trained(session, twins.batches("cifar-cnn", 1, size=512), 1).wait()
session.run(1)
has_ended = all(array.is_ready() for array in jax.live_arrays())
print(session.settings()["inline-dispatch"], has_ended)
"""
"""Prints what the session says of its dispatch, and whether a large request has ended when its call returns."""


def captured(device: Any) -> bool:
    return flags.captures_convolutions(device)


def searched(device: Any) -> bool:
    return flags.searches_kernels(device, wanted=True)


# As jaxlib 0.10.2 takes them: the field of its debug options after each.
@pytest.mark.parametrize(
    ("read", "given", "expected"),
    [
        (captured, "", False),
        (captured, OURS, True),
        (captured, f"{OURS} {BUFFERS}=", False),
        (captured, f"{OURS} {BUFFERS}=''", False),
        (captured, f"{OURS} {BUFFERS}=-while", True),
        (captured, f"{OURS} {BUFFERS}=-CONVOLUTION", False),
        (captured, f"{OURS} {BUFFERS}=FUSION", False),
        (captured, f"{BUFFERS}=convolution,custom_call", True),
        (searched, "", True),
        (searched, f"{SEARCH}=0", False),
        (searched, f"{SEARCH}=0 {SEARCH}=4", True),
        (searched, f"{SEARCH}=4 {SEARCH}=0", False),
        (flags.runs_concurrently, "", False),
        (flags.runs_concurrently, f"{ORDER}=CONCURRENT", True),
        (flags.runs_concurrently, f"{ORDER}=CONCURRENT {ORDER}=LHS", False),
        (flags.hides_latency, "", False),
        (flags.hides_latency, f"{HIDING}=true", True),
        (flags.hides_latency, f"{HIDING}", True),
        (flags.hides_latency, f"{HIDING}=true {HIDING}=false", False),
        (flags.deterministic, "", False),
        (flags.deterministic, "--xla_gpu_deterministic_ops=true", True),
        (flags.deterministic, "--xla_gpu_deterministic_ops", True),
        (flags.deterministic, "--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false", False),
    ],
)
def test_the_last_value_of_a_flag_holds_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Any], bool], given: str, expected: bool
):
    monkeypatch.setenv("XLA_FLAGS", given)
    assert read(GPU) is expected
    assert read(CPU) is (read is flags.deterministic)


@pytest.mark.parametrize(("given", "expected"), [("", True), ("=false", False), ("=0", False), ("=true", True)])
def test_excess_precision_is_allowed_unless_a_flag_forbids_it(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: bool
):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_allow_excess_precision{given}" if given else "")
    assert flags.excess_precision() is expected


@pytest.mark.parametrize(
    ("tuning", "graph", "concurrent", "search"),
    [
        ("tuned", True, True, True),
        ("tuned+concurrent-kernels=off", True, False, True),
        ("stock", False, False, True),
        ("tuned+kernel-search=off+graph-capture=off", False, False, False),
    ],
)
def test_what_a_tuning_asks_for_is_what_is_read_back(
    monkeypatch: pytest.MonkeyPatch, tuning: str, graph: bool, concurrent: bool, search: bool
):
    knobs = tunings.resolve("jax", tuning, "cuda", "resnet50")
    added = variables.make_child_environment("jax", knobs, "cuda", False, {})
    monkeypatch.setenv("XLA_FLAGS", added.get("XLA_FLAGS", ""))
    assert flags.captures_convolutions(GPU) is graph
    assert flags.runs_concurrently(GPU) is concurrent
    assert flags.searches_kernels(GPU, wanted=bool(knobs["kernel-search"])) is search


@pytest.mark.parametrize(("inherited", "told"), [({}, None), ({"XLA_FLAGS": "--xla_a=1"}, "--xla_a=1")])
def test_a_contender_without_flags_of_its_own_is_told_the_users(inherited: dict[str, str], told: str | None):
    knobs = tunings.resolve("jax", "stock", "cpu", "resnet50")
    assert variables.make_child_environment("jax", knobs, "cpu", False, inherited).get("XLA_FLAGS") == told


@pytest.mark.parametrize("inline", [False, True])
def test_requests_are_computed_in_the_thread_that_asks_if_the_knob_says_so(inline: bool):
    words = [sys.executable, "-c", ANSWERED, "on" if inline else "off"]
    done = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert done == [str(inline)] * 2
