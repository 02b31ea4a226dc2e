"""Every figure and verdict comes again from the raw samples, and one that was changed is found."""

import functools
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.base import typed_json
from compare.reproduce import recompute, rejudge_gates
from compare.reproduce.recompute import Mismatch
from compare.results import model, result_file, verdicts
from tests.unit.mutations import H200, TENSORS, consistent, on_a_gpu
from tests.unit.result_factory import make_comparison, make_contender, make_result

PUBLISHED = next(path for path in H200 if path.parent.name == "cifar-cnn-bfloat16")
ON_A_CPU = Path(__file__).resolve().parents[1] / "data" / "faster" / "result.json"


@functools.cache
def load_published() -> dict[str, Any]:
    return result_file.load(PUBLISHED)


def mismatches(result: dict[str, Any]) -> list[Mismatch]:
    return recompute.find_mismatches(model.from_json(result))


def missing(pair: dict[str, Any], precision: str) -> list[str]:
    return list(rejudge_gates.find_missing(typed_json.read(model.Pair, pair), precision))


@pytest.mark.parametrize("path", H200, ids=lambda path: path.parent.name)
def test_published_results_come_again(path: Path) -> None:
    assert mismatches(result_file.load(path)) == []


@pytest.mark.parametrize("made", [consistent(), on_a_gpu()], ids=["cpu", "gpu"])
def test_a_result_with_voids_comes_again(made: dict[str, Any]) -> None:
    result_file.validate(made)
    assert mismatches(made) == []


def test_what_happens_on_a_gpu_that_a_round_was_not_on_does_not_void_it() -> None:
    made = on_a_gpu()
    quiet = {**made["telemetry"]["samples"], "xids": [[]] * 95}
    made["spec"]["rotation"] = 2
    made["telemetry"]["others"] = [{"lists_processes": True, "samples": quiet}]
    assert {each.place for each in mismatches(made)} >= {"number of voided"}
    made["voided"] = []
    again = model.to_json(verdicts.complete_result(model.from_json(made)))
    result_file.validate(again)
    assert mismatches(again) == []


def at(result: Any, path: str) -> tuple[Any, Any]:
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in steps:
        result = result[step]
    return result, last


DERIVED = [
    "contenders.0.step_seconds.median",
    "contenders.1.step_seconds.mean",
    "contenders.1.step_seconds.iqr",
    "contenders.0.step_seconds.interval.estimate",
    "contenders.0.step_seconds.interval.low",
    "contenders.1.step_seconds.interval.high",
    "contenders.1.images_per_second",
    "comparisons.0.ratio.estimate",
    "comparisons.0.ratio.low",
    "comparisons.0.ratio.high",
    "comparisons.0.detectable",
]


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.sampled_from(DERIVED), st.floats(1e-6, 1e-1), st.sampled_from((-1, 1)), st.booleans())
def test_a_figure_that_was_touched_is_found(path: str, change: float, sign: int, published: bool) -> None:
    result = deepcopy(load_published() if published else consistent())
    holder, key = at(result, path)
    holder[key] *= 1 + sign * change
    places = {each.place for each in mismatches(result)}
    assert path.replace(".0", "[0]").replace(".1", "[1]") in places


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1), st.integers(0, 8), st.integers(0, 5), st.floats(1e-6, 1e-1))
def test_a_block_that_was_touched_is_found(contender: int, round_: int, block: int, change: float) -> None:
    result = consistent()
    result["contenders"][contender]["step_seconds"]["samples"][round_][block] *= 1 + change
    assert any(each.place.startswith(f"contenders[{contender}]") for each in mismatches(result))


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("comparisons.0.verdict", "EQUIVALENT", "comparisons[0].verdict"),
        ("comparisons.0.rounds", 10, "comparisons[0].rounds"),
        ("comparisons.0.margin", 0.5, "comparisons[0].margin"),
        ("comparisons.0.outliers", [3], "number of comparisons[0].outliers"),
        ("comparisons.0.reason", "trust me", "comparisons[0].reason"),
        ("comparisons.0.contender", "torch", "comparisons[0].contender"),
        ("comparisons", [], "number of comparisons"),
        ("comparisons", [make_comparison()] * 2, "number of comparisons"),
        ("voided", [], "number of voided"),
        ("voided.0.round", 9, "voided[0].round"),
        ("voided.0.reason", "rain", "voided[0].reason"),
        ("telemetry.foreign_cores.3", 0.9, "number of voided"),
        ("telemetry.foreign_cores", [0.01] * 9, "number of telemetry.foreign_cores"),
        ("spec.rounds", 50, "number of contenders[1].step_seconds.samples"),
        ("telemetry.idle_cores", [0.01] * 9 + [0.3], "voided[0].reason"),
        ("telemetry.idle_cores", [0.01] * 9, "number of telemetry.idle_cores"),
        ("contenders.0.settings", {"batch_size": 16}, "spec.batch_size"),
        ("contenders.0.step_seconds.windows.3.2", [5.0, 5.09], "length of contenders[0].step_seconds.windows[3][2]"),
        ("contenders.0.step_seconds.windows.3", [[5.0, 6.0]] * 5, "number of contenders[0].step_seconds.windows[3]"),
        ("contenders.0.backend", "jax", "contenders[0].name"),
        ("contenders.1.name", "jax:stock", "contenders[1].name"),
        ("agreement.status", "skipped", "agreement.status"),
        ("agreement.reason", "because", "agreement.reason"),
        ("agreement.first_mismatch", "logits", "agreement.first_mismatch"),
        ("agreement.gates.0.value", 2e-14, "agreement.gates[0].value"),
        ("agreement.gates.1.passed", False, "agreement.gates[1].passed"),
        ("spec.confidence", 0.9, "comparisons[0].ratio.low"),
        ("spec.margin", 0.6, "comparisons[0].verdict"),
        ("spec.batch_size", 65, "contenders[0].images_per_second"),
        ("spec.agreement_requested", False, "comparisons[0].verdict"),
        ("spec.design", "sequential", "comparisons[0].verdict"),
        ("contenders.1.unproven", "nothing was trained", "comparisons[0].verdict"),
        ("contenders.1.status", "crash", "comparisons[0].verdict"),
    ],
)
def test_a_place_that_was_touched_is_found(path: str, value: Any, place: str) -> None:
    result = consistent()
    holder, key = at(result, path)
    holder[key] = value
    assert place in {each.place for each in mismatches(result)}


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("pairs.0.gates.0.value", 1e-12, "agreement.pairs[0].gates[0].value"),
        ("pairs.0.gates.0.limit", 1e-2, "agreement.pairs[0].gates[0].limit"),
        ("pairs.0.gates.1.value", 2e6, "agreement.pairs[0].gates[1].value"),
        ("pairs.0.gates.2.value", 0.1, "agreement.pairs[0].gates[2].value"),
        ("pairs.0.gates.0.worst_tensor", "delta/blocks.0.conv.kernel", "agreement.pairs[0].gates[0].worst_tensor"),
        ("pairs.0.tensors.40.e64", 1e-9, "agreement.pairs[0].status"),
        ("pairs.0.tensors.40.scaling", 2.0, "agreement.pairs[0].status"),
        ("pairs.0.tensors.40.baseline_error", 1.0, "agreement.pairs[0].status"),
        ("pairs.0.tensors.40.noise", 1e-30, "comparisons[0].verdict"),
        ("pairs.0.status", "skipped", "comparisons[0].verdict"),
    ],
)
def test_a_certificate_that_was_touched_is_found(path: str, value: Any, place: str) -> None:
    result = result_file.load(PUBLISHED)
    holder, key = at(result["agreement"], path)
    holder[key] = value
    assert place in {each.place for each in mismatches(result)}


@pytest.mark.parametrize(
    ("name", "value", "touched"),
    [
        ("accuracy", 0.001, ("accuracies", "jax", [0.98, 0.982, 0.979])),
        ("trajectory", 0.5, ("trajectory", "jax", {"loss": [2.0, 1.0, 0.5], "envelope": [1e-6, 1e-5]})),
        ("settings", 3.0, None),
        ("determinism", 2.0, None),
    ],
)
def test_a_gate_of_whole_runs_that_was_touched_is_found(name: str, value: float, touched: Any) -> None:
    result = consistent()
    gates = result["agreement"]["pairs"][0]["gates"]
    index = next((index for index, gate in enumerate(gates) if gate["name"] == name), len(gates))
    if index == len(gates):
        gates.append({"name": name, "limit": 0.0, "passed": True, "worst_tensor": None})
    gates[index]["value"] = value
    if touched:
        result["agreement"][touched[0]][touched[1]] = touched[2]
    assert any(each.place.startswith(f"agreement.pairs[0].gates[{index}].") for each in mismatches(result))


@pytest.mark.parametrize("name", ["semantic", "scaling", "precision"])
def test_a_gate_that_was_left_out_is_found(name: str) -> None:
    result = consistent()
    gates = result["agreement"]["pairs"][0]["gates"]
    gates[:] = [gate for gate in gates if gate["name"] != name]
    assert "number of agreement.pairs[0].gates" in {each.place for each in mismatches(result)}


def test_a_gate_that_passed_without_evidence_is_found() -> None:
    result = consistent()
    result["agreement"]["pairs"][0]["tensors"] = []
    found = {each.place: each.recomputed for each in mismatches(result)}
    assert found["agreement.pairs[0].gates[0].value"] is None
    assert found["agreement.pairs[0].status"] == "fail"
    assert found["comparisons[0].verdict"] == "INVALID"


def test_settings_that_differ_are_found_though_their_gate_says_that_they_do_not() -> None:
    result = consistent()
    result["contenders"][1]["settings"]["compute_dtype"] = "float16"
    found = {each.place: each.recomputed for each in mismatches(result)}
    assert found["agreement.pairs[0].gates[3].worst_tensor"] == "compute_dtype"
    assert found["comparisons[0].verdict"] == "INVALID"


def test_several_cases_are_judged_one_by_one() -> None:
    def tensor(name: str, e64: float) -> dict[str, Any]:
        figures = {"e32": 1e-6, "scaling": 1e-6 / e64, "noise": 1e-7, "baseline_error": 1e-7, "contender_error": 2e-7}
        return {"name": name, "e64": e64, **figures}

    result = consistent()
    result["agreement"]["pairs"][0]["tensors"] = [
        tensor(f"{name} [{case}]", e64 if name == "step1/logits" else 1e-15)
        for case, e64 in (("batch 64", 1e-14), ("batch 2, 9 pixels", 3e-14))
        for name in TENSORS
    ]
    result["agreement"]["pairs"][0]["gates"][:3] = [
        {"name": name, "value": value, "limit": limit, "passed": True, "worst_tensor": worst}
        for name, value, limit, worst in (
            ("semantic", 3e-14, 1e-10, "step1/logits [batch 2, 9 pixels]"),
            ("scaling", 1e-6 / 3e-14, 1e6, "step1/logits [batch 2, 9 pixels]"),
            ("precision", 2.0, 10.0, "step1/logits [batch 2, 9 pixels]"),  # as bad in both
        )
    ]
    result["agreement"]["gates"] = deepcopy(result["agreement"]["pairs"][0]["gates"])
    assert mismatches(result) == []


@pytest.mark.parametrize("path", [ON_A_CPU, PUBLISHED])
def test_a_pair_passes_with_all_its_evidence_alone(path: Path) -> None:
    pair = result_file.load(path)["agreement"]["pairs"][0]
    assert not missing(pair, "float32")
    for index, tensor in enumerate(pair["tensors"]):
        left = pair | {"tensors": [*pair["tensors"][:index], *pair["tensors"][index + 1 :]]}
        assert missing(left, "float32") == [f"tensors[{tensor['name']}]"]


def test_every_kind_of_evidence_is_asked_of_a_pair_that_passes() -> None:
    result = consistent()
    (pair,) = result["agreement"]["pairs"]
    for name in TENSORS:
        less = pair | {"tensors": [each for each in pair["tensors"] if each["name"] != name]}
        assert missing(less, "float32") == [f"tensors[{name}]"]
        bare = [each | {"noise": None} if each["name"] == name else each for each in pair["tensors"]]
        assert missing(pair | {"tensors": bare}, "float32") == [f"tensors[{name}].noise"]
        assert not missing(pair | {"tensors": bare}, "float64")
        # What is zero, and no longer where inputs are rounded, has no floor and no errors.
        none = dict.fromkeys(("noise", "baseline_error", "contender_error"))
        bare = [each | none if each["name"] == name else each for each in pair["tensors"]]
        assert not missing(pair | {"tensors": bare}, "float32")
    for name in ("semantic", "scaling", "precision"):
        less = pair | {"gates": [gate for gate in pair["gates"] if gate["name"] != name]}
        assert missing(less, "float32") == [f"gates[{name}]"]
    assert not missing(less | {"status": "skipped", "tensors": []}, "float32")
    assert "gates[precision]" not in missing(less, "float64")
    pair["tensors"] = [each for each in pair["tensors"] if each["name"] != "step2/loss"]
    (found,) = mismatches(result)
    assert (found.place, found.is_missing) == ("agreement.pairs[0].tensors[step2/loss]", True)


def test_evidence_is_asked_of_every_case() -> None:
    (pair,) = consistent()["agreement"]["pairs"]
    cases = [each | {"name": f"{each['name']} [{case}]"} for case in ("batch 2", "batch 7") for each in pair["tensors"]]
    assert not missing(pair | {"tensors": cases}, "float32")
    less = [each for each in cases if each["name"] != "step3/update/dense.kernel [batch 7]"]
    assert missing(pair | {"tensors": less}, "float32") == ["tensors[step3/update/dense.kernel [batch 7]]"]


@pytest.mark.parametrize(("precision", "computed"), [("tf32", "bfloat16"), ("bfloat16", "float32")])
def test_a_precision_that_no_contender_has_is_found(precision: str, computed: str) -> None:
    result = consistent()
    result["spec"]["precision"] = precision
    for side in result["contenders"]:
        side["settings"]["compute_dtype"] = computed
    assert "spec.precision" in {each.place for each in mismatches(result)}
    layers = {"stem": computed, "conv": {"tf32": "float32"}.get(precision, precision)}
    result["contenders"][1]["settings"]["layer_dtypes"] = layers  # only its first layer has another
    assert "spec.precision" not in {each.place for each in mismatches(result)}
    del result["contenders"][1]["settings"]["layer_dtypes"]
    # Where one has it, the gate of settings tells.
    result["contenders"][0]["settings"]["compute_dtype"] = {"tf32": "float32"}.get(precision, precision)
    assert "spec.precision" not in {each.place for each in mismatches(result)}


def test_every_gate_is_required() -> None:
    result = consistent()
    result["telemetry"]["idle_cores"] = [0.0] * 10
    (pair,) = result["agreement"]["pairs"]
    for name in ("settings", "update", "trajectory", "accuracy"):
        less = deepcopy(result)
        gates = [gate for gate in pair["gates"] if gate["name"] != name]
        less["agreement"]["gates"] = less["agreement"]["pairs"][0]["gates"] = gates
        assert [each.place for each in mismatches(less)] == [f"agreement.pairs[0].gates[{name}]"]
    result["spec"]["deterministic"] = True
    assert [each.place for each in mismatches(result)] == ["agreement.pairs[0].gates[determinism]"]
    failed = deepcopy(result)
    failed["contenders"][1] |= {"status": "crash", "reason": "ended after its certificate"}
    assert not any(each.is_missing for each in mismatches(failed))


@pytest.mark.parametrize("layers", [None, [], "float32", {"conv": {}}, {"conv": [1]}], ids=str)
def test_settings_of_any_form_are_read(layers: Any) -> None:
    result = consistent()
    for side in result["contenders"]:
        side["settings"] |= {"compute_dtype": ["bfloat16"], "layer_dtypes": layers}
    assert "spec.precision" in {each.place for each in mismatches(result)}


@pytest.mark.parametrize(
    ("wobble", "verdict", "reason"),
    [(0.0, "SLOWER", "every verdict was certain"), (0.5, "INCONCLUSIVE", "it was interrupted")],
)
def test_an_interruption_at_a_look_is_no_certain_verdict(wobble: float, verdict: str, reason: str) -> None:
    spec = {"rounds": 3, "rounds_requested": 10, "looks": {"3": 0.004, "5": 0.011, "10": 0.035}}
    sides = [make_contender("torch"), make_contender("jax", step=3e-3)]
    for side, factor in zip(sides, (1, 1 + wobble), strict=True):
        step = side["step_seconds"]
        step["samples"] = [
            [blocks[0] * (factor if number else 1)] * 3 for number, blocks in enumerate(step["samples"][:3])
        ]
        step["windows"] = step["windows"][:3]
    (comparison,) = verdicts.complete_result(model.from_json(make_result(spec=spec, contenders=sides))).comparisons
    assert comparison.verdict == verdict
    assert comparison.stopped is not None
    assert comparison.stopped.reason.startswith(reason)


@pytest.mark.parametrize(
    ("slower", "reason"), [(1.0, "the ratio was clear of the limit of 3 %"), (1.02, "it was interr")]
)
def test_a_gate_that_ended_near_its_limit_was_interrupted(slower: float, reason: str) -> None:
    spec = {"rounds": 10, "rounds_requested": 20, "looks": {"10": 0.035, "20": 0.015}, "fail_above": 0.03}
    sides = [make_contender("torch"), make_contender("jax")]
    for side, factor in zip(sides, (1, slower), strict=True):
        step = side["step_seconds"]
        step["samples"] = [[factor * (1 + 0.05 * (factor > 1) * (number % 2))] * 3 for number in range(10)]
    (comparison,) = verdicts.complete_result(model.from_json(make_result(spec=spec, contenders=sides))).comparisons
    assert comparison.stopped is not None
    assert comparison.stopped.reason.startswith(reason)
