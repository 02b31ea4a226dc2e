import io
import re
from typing import Any

import pytest
from rich.console import Console

from compare.base import typed_json
from compare.machine.memory import DEFINITIONS
from compare.report import certificate_text, pair_text
from compare.report.measurements import time_unit
from compare.report.sentences import (
    describe_agreement,
    describe_comparison,
    describe_setting,
    format_gate_value,
    format_ratio_figures,
    make_heading,
)
from compare.report.terminal import render
from compare.results import model
from compare.results.result_file import validate
from tests.unit.result_factory import make_comparison, make_contender, make_result, typed, typed_comparison

SPEED_WORDS = re.compile(r"fast|slow|times as|ratio|speed|equivalent|same time", re.IGNORECASE)


def _rendered(width: int = 100, encoding: str = "utf-8", brief: bool = False, **overrides: Any) -> str:
    result = make_result(**overrides)
    validate(result)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    render(typed(result), Console(file=stream, width=width), brief=brief)
    stream.seek(0)
    return stream.read()


def _row(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.strip().startswith(label))
    return line.strip().removeprefix(label).split()


def test_heading_says_what_was_trained_where_and_how() -> None:
    text = make_heading(typed(make_result()))
    for part in (
        "digits-cnn",
        "cpu (Example CPU)",
        "float32",
        "batch 64",
        "30 epochs",
        "10 rounds",
        "34,826 parameters",
    ):
        assert part in text
    assert "batch 64 in 4 micro-batches," in make_heading(typed(make_result(spec={"accumulate": 4})))
    assert "cuda (H200)" in make_heading(
        typed(make_result(spec={"device": "cuda"}, environment={"nvidia": {"gpus": [{"name": "H200"}]}}))
    )
    assert " on cuda in " in make_heading(typed(make_result(spec={"device": "cuda"}, environment={"nvidia": None})))


def test_reports_say_over_how_many_devices_batches_were_split() -> None:
    spec = {"devices": 4, "machines": 2, "batch_norm": "local"}
    sides = [make_contender(name, settings={"devices": count}) for name, count in (("torch", 4), ("jax", 1))]
    split = "batch 64 over 4 devices of 2 machines (jax: 1 device), batch norm local, "
    result = make_result(spec=spec, contenders=sides)
    assert f"{split}30 epochs" in make_heading(typed(result))
    assert describe_setting(typed(result)) == f"digits-cnn in float32, {split}on cpu (Example CPU)"
    assert "over 2 devices, batch norm sync, 30 epochs" in make_heading(typed(make_result(spec={"devices": 2})))
    text = _rendered(width=200, spec={"devices": 2, "machines": 1, "batch_norm": "sync"})
    assert "batch 64 over 2 devices, batch norm sync, 30 epochs" in text
    one = make_result(spec={"devices": 1, "machines": 1, "batch_norm": "sync"})
    assert (make_heading(typed(one)), describe_setting(typed(one))) == (
        make_heading(typed(make_result())),
        describe_setting(typed(make_result())),
    )


def test_a_setting_names_the_requests() -> None:
    requests = make_result(spec={"task": "infer", "batch_sizes": [1, 64]})
    said = "digits-cnn in float32, requests of 1 and 64 images, on cpu (Example CPU)"
    assert describe_setting(typed(requests)) == said


def test_kernels_that_were_searched_for_once_are_told_for_no_interval_contains_another_search() -> None:
    def render_remarks(*searches: str | None) -> str:
        names = "torch", "jax", "jax#2"
        sides = [make_contender(name, kernel_search=each) for name, each in zip(names, searches, strict=True)]
        return " ".join(_rendered(contenders=sides).split())

    once = (
        "one search for kernels serves all rounds, so the interval does not show how much another search would change "
        "(--search-anew searches in every round)"
    )
    assert f"torch, jax#2: {once}" in render_remarks("once", "every round", "once")
    assert "search for" not in render_remarks("every round", None, None)
    untimed = make_contender("jax", kernel_search="once", step_seconds=None, images_per_second=None)
    assert "search for kernels" not in _rendered(contenders=[make_contender("torch"), untimed])


RANKS = {"torch": 1, "jax": 2}


def test_unlike_numbers_of_threads_are_told_where_both_are_known() -> None:
    def render_remarks(torch: int, jax: int | None) -> str:
        counts = {"torch": torch, "jax": jax}
        return _rendered(contenders=[make_contender(name, settings={"threads": counts[name]}) for name in counts])

    assert "unequal numbers of threads: torch 1, jax 2" in render_remarks(1, 2)
    assert "threads" not in render_remarks(2, 2) + render_remarks(2, None)
    ranks = [make_contender(name, settings={"threads": 2 // count, "devices": count}) for name, count in RANKS.items()]
    assert "threads" not in _rendered(contenders=ranks)
    odd = [make_contender(name, settings={"threads": [name]}) for name in RANKS]
    assert "threads" not in _rendered(contenders=odd)  # a file may say what it likes


def test_sentence_for_faster() -> None:
    assert describe_comparison(typed_comparison(make_comparison())) == (
        "jax is 1.43 times as fast as torch (ratio 0.699, 95 % interval 0.688 to 0.711, 10 rounds): FASTER; "
        "the smallest difference that 10 rounds would show is about 2.34 %"
    )


def test_an_interval_over_many_orders_of_magnitude_is_not_printed() -> None:
    wide = {"estimate": 0.8, "low": 8.26e-16, "high": 2.42e11, "confidence": 0.996}
    comparison = make_comparison(verdict="INCONCLUSIVE", ratio=wide, rounds=2, detectable=1e17)
    text = describe_comparison(typed_comparison(comparison))
    assert "(ratio 0.8, too few rounds for an interval, 2 rounds): INCONCLUSIVE" in text
    assert "e+" not in text


def test_sentence_says_why_timing_stopped_early() -> None:
    stopped = {"rounds": 3, "reason": "every verdict was certain"}
    text = describe_comparison(typed_comparison(make_comparison(rounds=3, stopped=stopped)))
    assert "FASTER; timing stopped after 3 rounds, because every verdict was certain; the smallest" in text


def test_a_run_that_may_stop_early_explains_the_confidence_of_its_interval() -> None:
    spec = {"rounds": 3, "looks": {"3": 0.004, "5": 0.011, "10": 0.035}}
    text = " ".join(_rendered(spec=spec).split())
    assert "99.6 % interval: timing may stop early" in text
    assert "(0.4 % after 3 rounds, 1.1 % after 5 rounds, 3.5 % after 10 rounds; together 5 %)" in text
    assert "the interval after 3 rounds has 99.6 % confidence" in text
    gate = " ".join(_rendered(spec={**spec, "fail_above": 0.03}).split())
    assert "timing may stop early, at a look where the ratio is clear of the limit of 3 %" in gate
    assert "stop early" not in _rendered()
    voided = [{"round": number, "reason": "busy"} for number in (1, 2, 3)]
    assert "stop early" not in _rendered(spec=spec, voided=voided)  # no interval is left


def test_sentence_for_slower_is_turned_round() -> None:
    assert describe_comparison(typed_comparison(make_comparison(verdict="SLOWER"))) == (
        "jax takes 1.43 times as long as torch (ratio 1.430, 95 % interval 1.406 to 1.453, 10 rounds): SLOWER; "
        "the smallest difference that 10 rounds would show is about 2.34 %"
    )


def test_sentence_for_equivalent() -> None:
    assert describe_comparison(typed_comparison(make_comparison(verdict="EQUIVALENT"))) == (
        "jax and torch take the same time to within 1 % "
        "(ratio 1.001, 95 % interval 0.996 to 1.006, 10 rounds): EQUIVALENT; "
        "the smallest difference that 10 rounds would show is about 2.34 %"
    )


@pytest.mark.parametrize(("low", "estimate", "high"), [(1.001, 1.006, 1.012), (0.985, 0.993, 0.999)])
def test_sentence_for_undecided_names_the_margin_that_decides(low: float, estimate: float, high: float) -> None:
    ratio = {"estimate": estimate, "low": low, "high": high, "confidence": 0.95}
    text = describe_comparison(typed_comparison(make_comparison(verdict="INCONCLUSIVE", ratio=ratio, margin=0.011)))
    said = "INCONCLUSIVE; the interval excludes 1, but reaches both below and above the margin of 1.1 %; the"
    assert said in text
    assert "margin" not in describe_comparison(typed_comparison(make_comparison(verdict="INCONCLUSIVE")))


def test_sentence_for_inconclusive_says_what_it_could_have_seen() -> None:
    text = describe_comparison(typed_comparison(make_comparison(verdict="INCONCLUSIVE")))
    assert text.startswith("jax against torch is undecided (ratio 1.010, ")
    assert text.endswith("INCONCLUSIVE; the smallest difference that 10 rounds would show is about 2.34 %")
    without = describe_comparison(
        typed_comparison(
            make_comparison(verdict="INCONCLUSIVE", ratio=None, detectable=None, reason="every round is void")
        )
    )
    assert without == "jax against torch: INCONCLUSIVE, every round is void"


def test_invalid_gives_its_reason_and_claims_nothing() -> None:
    invalid = make_comparison(verdict="INVALID")
    assert describe_comparison(typed_comparison(invalid)).endswith("the semantic gate failed")
    assert not SPEED_WORDS.search(describe_comparison(typed_comparison(invalid)))
    report = _rendered(comparisons=[invalid])
    assert "INVALID" in report
    assert not SPEED_WORDS.search(report)
    assert SPEED_WORDS.search(_rendered())


def test_a_small_difference_does_not_read_as_none() -> None:
    ratio = {"estimate": 0.9989, "low": 0.9981, "high": 0.99991, "confidence": 0.99}
    text = describe_comparison(typed_comparison(make_comparison(ratio=ratio, margin=0.0)))
    assert "jax is 1.001 times as fast" in text
    assert "ratio 0.9989, 99 % interval 0.9981 to 0.9999" in text


def test_a_bound_that_is_0_or_1_asks_for_no_more_decimals() -> None:
    assert format_ratio_figures(
        typed_json.read(model.Interval, {"estimate": 0.5, "low": 0.0, "high": 1.0, "confidence": 0.95})
    ) == (
        "0.500",
        "0.000",
        "1.000",
    )


@pytest.mark.parametrize(("value", "shown"), [(10.41, "10.4"), (10.0004, "10.0004"), (10.0, "10"), (9.96, "9.96")])
def test_a_value_beside_its_limit_is_told_from_it(value: float, shown: str) -> None:
    gate = {"name": "precision", "value": value, "limit": 10, "passed": value <= 10, "worst_tensor": None}
    assert format_gate_value(typed_json.read(model.Gate, gate), 2) == shown


def test_report_holds_the_sentence_and_the_figures() -> None:
    text = _rendered()
    assert describe_comparison(typed_comparison(make_comparison())) in " ".join(text.split())
    assert _row(text, "compile (s)") == ["12.3", "12.3"]
    assert _row(text, "from cache (s)") == ["1.23", "1.23"]
    assert _row(text, "first step (s)") == ["0.457", "0.457"]
    assert _row(text, "step time (ms)") == ["2.500", "1.747"]
    assert _row(text, "95 % interval") == ["2.475–2.525", "1.730–1.765"]  # noqa: RUF001 -- the report's dash
    assert _row(text, "images/s") == ["25,600", "36,624"]
    assert _row(text, "live peak (MiB)") == ["12.0", "12.0"]
    assert _row(text, "train accuracy (%)") == ["99.91", "99.91"]
    assert _row(text, "test accuracy (%)") == ["98.33", "98.33"]
    assert _row(text, "final loss") == ["0.0421", "0.0421"]
    assert "status" not in text


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [([2.0, 1.0], "s"), ([2.0, 0.5], "ms"), ([1e-3], "ms"), ([2e-3, 9e-4], "µs"), ([1e-8], "µs"), ([], "s")],
)
def test_one_unit_for_all_times(seconds: list[float], unit: str) -> None:
    assert time_unit(seconds)[1] == unit


def test_a_step_time_may_have_no_interval() -> None:
    step = {**make_contender()["step_seconds"], "interval": None, "estimate": 3e-3}
    text = _rendered(contenders=[make_contender(step_seconds=step), make_contender("jax", step_seconds=step)])
    assert _row(text, "step time (ms)") == ["3.000", "3.000"]
    assert "95 % interval –" not in text  # noqa: RUF001 -- the report's dash
    assert "geometric mean" not in text
    assert "interval" not in text.partition("jax is")[0]


def with_memory(**changes: Any) -> dict[str, Any]:
    return {**make_contender()["memory"], **changes}


def test_a_memory_figure_that_some_contenders_lack_has_a_dash_and_its_reason_once() -> None:
    sides = [make_contender(), make_contender("jax", memory=with_memory(static_bytes=2**22, absent={}))]
    text = _rendered(contenders=sides)
    assert _row(text, "static (MiB)") == ["–", "4.0"]  # noqa: RUF001 -- the report's dash
    assert text.count("torch has no static plan") == 1
    assert "static: not available for torch: torch has no static plan" in text


def test_memory_figures_that_no_contender_has_make_no_row_and_one_line() -> None:
    keys = "live_peak_bytes", "pool_peak_bytes"
    sides = [
        make_contender(
            name, memory=with_memory(**dict.fromkeys(keys), absent=dict.fromkeys(keys, f"{name} does not tell"))
        )
        for name in ("torch", "jax")
    ]
    text = _rendered(contenders=sides)
    assert "peak (MiB)" not in text
    assert "live peak, pool peak: not available: torch does not tell; jax does not tell" in text
    assert text.count("live peak") == 1


def test_each_memory_figure_shown_is_defined() -> None:
    text = " ".join(_rendered().split())
    for figure, definition in DEFINITIONS.items():
        assert text.count(definition) == (figure != "static_bytes")
    none = _rendered(contenders=[make_contender(memory=None), make_contender("jax", memory=None)])
    assert "MiB" not in none
    assert "allocator" not in none


def test_a_brief_report_keeps_claims_and_shows_the_gates_of_a_failure_only() -> None:
    brief = _rendered(brief=True)
    assert all(text in brief for text in ("images/s", "FASTER", "agreement in float32: pass", "not available:"))
    assert not any(text in brief for text in ("semantic: ", *DEFINITIONS.values()))
    agreement = {**make_result()["agreement"], "status": "fail", "first_mismatch": "gradient/conv.kernel"}
    assert "semantic: 3.1e-13" in _rendered(brief=True, agreement=agreement)


def test_a_failed_contender_keeps_its_column_and_says_why() -> None:
    failed = make_contender(
        "jax", status="oom", reason="out of device memory", step_seconds=None, images_per_second=None, training=None
    )
    text = _rendered(contenders=[make_contender(), failed], comparisons=[])
    assert _row(text, "status") == ["ok", "oom"]
    assert _row(text, "step time (ms)") == ["2.500", "–"]  # noqa: RUF001 -- the report's dash
    assert "jax: oom, out of device memory" in text


def test_a_contender_that_was_done_again_says_why_though_it_is_well() -> None:
    again = make_contender("jax", reason="repeated alone what had failed beside others (crash: x)")
    text = _rendered(contenders=[make_contender(), again])
    assert "jax: ok, repeated alone what had failed beside others (crash: x)" in text
    assert "status" not in text
    assert "torch: ok" not in text


def test_contenders_without_a_compile_time_share_the_reason() -> None:
    sides = [
        make_contender(name, compile_seconds=None, compile_reason="beside other work") for name in ("torch", "jax")
    ]
    text = _rendered(contenders=sides)
    assert text.count("no compile time") == 1
    assert "torch, jax: no compile time: beside other work" in text


def test_a_loss_that_became_nan_is_seen() -> None:
    training = {"loss": [2.3, None], "train_accuracy": 0.1, "test_accuracy": 0.1}
    assert "not finite" in _rendered(contenders=[make_contender(training=training)], comparisons=[])


def test_a_disturbed_run_says_once_what_happened_and_what_to_do() -> None:
    void = [{"round": n, "reason": f"other programs kept {n / 10:.2f} cores busy"} for n in range(1, 11)]
    undecided = make_comparison(verdict="INCONCLUSIVE", ratio=None, detectable=None, reason="10 of 10 rounds are void")
    busy = make_result()["telemetry"] | {"foreign_cores": [n / 10 for n in range(1, 11)], "busiest": ["cc"] * 10}
    text = " ".join(_rendered(voided=void, comparisons=[undecided], telemetry=busy).split())
    top = text.split("compile (s)")[0]
    assert "DISTURBED, no verdict: 10 of 10 rounds are void" in top
    assert "because other programs kept 0.10 to 1.00 cores busy (busiest: cc in 10 rounds)" in top
    assert "ratio" in top
    assert "run it again" in top
    assert [text.count(once) for once in ("INCONCLUSIVE", " void", "cores busy", "busiest")] == [1, 1, 1, 1]
    assert "DISTURBED" not in _rendered()


def test_void_rounds_of_an_invalid_comparison_make_one_line() -> None:
    void = [{"round": n, "reason": f"other programs kept {n / 10:.2f} cores busy"} for n in range(1, 11)]
    invalid = make_comparison(verdict="INVALID", reason="no agreement")
    text = _rendered(comparisons=[invalid], voided=void)
    assert "DISTURBED" not in text
    assert "rounds 1 to 10 are void: other programs kept 0.10 to 1.00 cores busy" in text
    assert text.count("cores busy") == 1
    void[4]["reason"] = void[8]["reason"] = "Xid 31"
    text = " ".join(_rendered(comparisons=[invalid], voided=void).split())
    assert "rounds 5 and 9 are void: Xid 31" in text
    assert "rounds 1, 2, 3, 4, 6, 7, 8 and 10 are void: other programs kept 0.10 to 1.00 cores busy" in text


def test_voids_and_unsteady_times_are_listed() -> None:
    text = _rendered(
        contenders=[make_contender(steady=False), make_contender("jax", unsteady_rounds=2)],
        voided=[{"round": 3, "reason": "a foreign process on the GPU"}],
    )
    assert "round 3 is void: a foreign process on the GPU" in text
    assert "torch: no steady state: step times still changed after warm-up" in text
    assert "jax: no steady state in 2 rounds" in text


def test_a_flag_of_the_users_that_undoes_a_tuning_s_is_told() -> None:
    ours, users = "--xla_gpu_enable_command_buffer=+CONVOLUTION,+WHILE", "--xla_gpu_enable_command_buffer="
    flags = f"{ours} --xla_gpu_deterministic_ops=true {users} --xla_gpu_deterministic_ops=true --xla_dump_to=/a'b"
    text = _rendered(300, contenders=[make_contender(), make_contender("jax", variables={"XLA_FLAGS": flags})])
    assert f"jax: {users} comes after {ours} in XLA_FLAGS, and decides" in text
    assert text.count("XLA_FLAGS") == 1  # what is said twice, alike, is not undone
    assert "XLA_FLAGS" not in _rendered()


def test_what_went_on_beside_is_told() -> None:
    comparison = make_comparison(outliers=[7])
    spec = {"design": "turns", "design_reason": "from round 1 on: the contenders do not fit in memory together"}
    telemetry = make_result()["telemetry"] | {"foreign_cores": [0.01, 0.02, 0.9], "idle_cores": [0.02, 0.04, 0.7]}
    text = " ".join(_rendered(comparisons=[comparison], spec=spec, telemetry=telemetry).split())
    assert "round 7 is far from the others, but it counts" in text
    assert "design of the rounds: turns (from round 1 on: the contenders do not fit in memory together)" in text
    assert "other programs kept 0.02 cores busy in the median round, 0.90 at most" in text
    assert "contenders that were not timed kept 0.04 cores busy in the median round, 0.70 at most" in text


def test_the_gpus_state_while_blocks_were_timed_is_told() -> None:
    samples = {
        "seconds": [0.5, 1.05, 1.35],  # the first is outside every block
        "sm_clock_mhz": [300, 1980, 1965],
        "memory_clock_mhz": [3201, 3201, 3201],
        "temperature_celsius": [30, 41, 42],
        "power_watts": [80.0, 600.0, None],
        "clock_reasons": [1, 4, 0],
        "foreign": [[], [], []],
    }
    telemetry = make_result()["telemetry"] | {"reason": None, "lists_processes": False, "samples": samples}
    text = " ".join(_rendered(spec={"device": "cuda"}, telemetry=telemetry).split())
    assert (
        "GPU while blocks were timed (2 samples): SM clock 1,965 to 1,980 MHz, memory clock 3,201 MHz, "
        "temperature 41 to 42 °C, power 600 W" in text
    )
    assert "the workload itself reached the power limit in 50 % of these" in text
    assert "NVML does not list this run's processes" in text
    assert "other programs" not in text
    telemetry["foreign_cores"] = [3.0]
    text = " ".join(_rendered(spec={"device": "cuda"}, telemetry=telemetry).split())
    assert "other programs kept 3.00 cores busy in the median round" in text
    two = telemetry | {"others": [{"lists_processes": True, "samples": samples | {"sm_clock_mhz": [345] * 3}}]}
    sides = make_result()["contenders"]
    for side in sides:
        side["step_seconds"] |= {
            "samples": [[2.5e-3]] * 3,
            "windows": [[[start, start + 0.1]] for start in (1.0, 1.3, 2.0)],
        }
    for rotation, told in ((1, (2, 2)), (2, (1, 1))):
        spec = {"device": "cuda", "rotation": rotation}
        text = " ".join(_rendered(spec=spec, telemetry=two, contenders=sides).split())
        for number, count in enumerate(told):
            assert f"GPU {number} while blocks were timed ({count} samples)" in text
    for side in sides:
        del side["step_seconds"]["windows"][1:], side["step_seconds"]["samples"][1:]
    text = _rendered(spec=spec, telemetry=two, contenders=sides)
    assert "GPU 1" not in text, "no round was timed on it"
    always = telemetry | {"samples": samples | {"clock_reasons": [4, 4, None]}}
    assert "the workload itself reached the power limit in 100 % of these" in " ".join(
        _rendered(spec={"device": "cuda"}, telemetry=always).split()
    )
    absent = telemetry | {"reason": "no NVML: not supported"}
    assert "no telemetry of the GPU: no NVML: not supported" in _rendered(spec={"device": "cuda"}, telemetry=absent)


def test_what_was_found_of_a_users_own_pair_is_told() -> None:
    side = {"source_sha256": "0123456789abcdef" * 4, "dropout": [], "notes": []}
    sides = {
        "torch": side | {"framework": "torch", "notes": ["head.weight is the same tensor as fc.weight"]},
        "jax": side
        | {"framework": "flax.nnx", "dropout": ["drop1 with p=0.5", "drop2"], "notes": ["m.py:net imported torch"]},
    }
    found = {
        "map": {"fc.weight": "fc/kernel", "fc.bias": "fc/bias"},
        "weights_from": "jax",
        "allowed": [],
        "different_alone": {"conv": None, "norm": 0.0123},
        "sides": sides,
    }
    model = {"family": "pair", "torch": "t.py:net", "jax": "m.py:net"}
    told = pair_text.make_lines(typed(make_result(spec={"pair": found, "model": model})).spec)
    alone = "alone, on the same input and weights, does not compute the same on both sides"
    assert told == [
        "torch model: t.py:net (source SHA-256 0123456789ab)",
        "flax.nnx model: m.py:net (source SHA-256 0123456789ab)",
        "2 variables matched, parameters and buffers; training starts from the weights of flax's factory",
        f"conv {alone}: the outputs have different shapes",
        f"norm {alone} (relative error 1.2e-02)",
        "head.weight is the same tensor as fc.weight",
        "dropout at rate 0 in flax: drop1 with p=0.5, drop2",
        "m.py:net imported torch",
        "dropout differs: rates none in torch, 0.5 in flax; both run at rate 0 here, "
        "and your own training is not the same",
        "both sides train with samestep's adam, learning rate 0.001, and the same loss",
    ]
    assert pair_text.make_lines(typed(make_result()).spec) == []


def test_a_failed_certificate_tells_the_verdict_then_the_cause_with_its_repair_then_the_rest() -> None:
    agreement = make_result()["agreement"] | {"status": "fail"}
    failed = {
        "status": "fail",
        "first_mismatch": "step1/activation/conv1 (e64 1.0e+00); likely cause: SAME pads it",
        "repairs": ["conv1: SAME pads it; equal with padding=1 in flax"],
        "notes": ["torch's conv1 against flax's Conv_0:"],
    }
    agreement["pairs"][0] |= failed
    side = {"framework": "torch", "source_sha256": "0" * 64, "dropout": [], "notes": []}
    pair = {"map": {}, "weights_from": "torch", "allowed": [], "different_alone": {}, "sides": {"torch": side}}
    result = typed(make_result(agreement=agreement, comparisons=[], spec={"pair": pair, "kind": "agreement"}))
    stream = io.StringIO()
    certificate_text.render(result, Console(file=stream, width=200), verbose=False)
    text = stream.getvalue()
    order = ["jax against torch: FAIL", "first mismatch: step1/activation/conv1 (e64 1.0e+00)\n"]
    order += [
        "1 difference to repair:\n  1. conv1: SAME pads it; equal with padding=1 in flax\n",
        "semantic ",
        "torch's conv1",
    ]
    order += ["torch model: ", "e64, e32: error between", "agreement in float32: fail"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert text.count("SAME pads it") == 1
    told = describe_agreement(result.agreement)
    assert "  jax against torch: fail, first mismatch step1/activation/conv1 (e64 1.0e+00)" in told
    assert "    1 difference to repair:" in told


def test_agreement_names_each_gate_and_the_mismatch() -> None:
    agreement = make_result()["agreement"]
    assert describe_agreement(typed_json.read(model.Agreement, agreement)) == [
        "agreement in float32: pass",
        "  semantic: 3.1e-13 (limit 1e-10), pass, worst tensor gradient/conv1.kernel",
        "  precision: 1.8 (limit 10), pass, worst tensor update/dense2.bias",
    ]
    scaling = {"name": "scaling", "value": 5e8, "limit": 1e6, "passed": True, "worst_tensor": None}
    lines = describe_agreement(typed_json.read(model.Agreement, {**agreement, "gates": [scaling]}))
    assert lines[1:] == ["  scaling: 5e+08 (lower limit 1e+06), pass"]
    gate = {"name": "semantic", "value": None, "limit": 1e-10, "passed": False, "worst_tensor": None}
    agreement["pairs"][0] |= {"status": "fail", "first_mismatch": "activation/conv1: padding"}
    failed = {**agreement, "status": "fail", "reason": "one pair differs", "gates": [gate]}
    assert describe_agreement(typed_json.read(model.Agreement, failed)) == [
        "agreement in float32: fail (one pair differs)",
        "  semantic: – (limit 1e-10), FAIL",  # noqa: RUF001 -- the report's dash
        "  jax against torch: fail, first mismatch activation/conv1: padding",
    ]
    lone = {**agreement, "pairs": [], "gates": [], "first_mismatch": "logits"}
    assert describe_agreement(typed_json.read(model.Agreement, lone))[-1] == "  first mismatch logits"


_FOUR = [
    make_contender("torch:stock"),
    make_contender("torch:tuned", 1.2e-3),
    make_contender("jax:compiled", 1.1e-3),
    make_contender("jax:compile=on,layout=nhwc,graph=off", 1e-3),
]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_four_contenders_fit_the_width(width: int) -> None:
    text = _rendered(width, contenders=_FOUR, comparisons=[])
    assert max(len(line) for line in text.splitlines()) <= width
    # Side by side or below one another, no number is broken or shortened.
    assert len(re.findall(r"\b25,600\b", text)) == 1
    assert len(re.findall(r"\b64,000\b", text)) == 1
    assert "…" not in text
    assert text.count("step time (ms)") == (2 if width == 80 else 1)


@pytest.mark.parametrize("width", range(40, 130, 3))
def test_as_many_contenders_stand_side_by_side_as_fit_and_none_is_broken(width: int) -> None:
    contenders = [*_FOUR[:3], make_contender("jax:tuned", 1e-3)]
    names = [each["name"] for each in contenders]
    lines = _rendered(width, contenders=contenders, comparisons=[]).splitlines()
    headed = [line.split() for line in lines if set(line.split()) <= set(names) and line.strip()]
    assert [name for line in headed for name in line] == names
    assert max(len(line) for line in lines) <= width


def test_nothing_in_a_result_is_markup_or_a_control_code() -> None:
    reason = "[red]a[/red] :smile:\x1b[31m\u202e\ud800\nend"
    text = _rendered(contenders=[make_contender(status="crash", reason=reason)], comparisons=[])
    assert "crash, [red]a[/red] :smile:?[31m?? end" in text
    assert "\x1b" not in text


def test_ascii_terminal() -> None:
    step = 9e-4
    text = _rendered(
        encoding="ascii",
        contenders=[make_contender(step=step)],
        comparisons=[],
        environment={"cpu": {"model": "é"}},
    )
    assert "step time (us)" in text
    assert "891.0-909.0" in text
    assert "cpu (?)" in text
