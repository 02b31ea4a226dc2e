"""A result that contradicts itself is refused: no report of it could be true."""

from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.results import consistency, result_file
from tests.unit import stored
from tests.unit.mutations import H200
from tests.unit.result_factory import make_comparison, make_contender, make_result, typed

CURVES = {"loss": [1.0, 0.5], "envelope": [0.0]}
VOID = {"round": 3, "reason": "a busy machine"}
RATIO = {"estimate": 0.5, "low": 0.6, "high": 0.7, "confidence": 0.95}


def _step(**changes: Any) -> dict[str, Any]:
    return {"step_seconds": {**make_contender()["step_seconds"], **changes}}


def _checked(result: dict[str, Any]) -> None:
    result_file.validate(result)
    consistency.check_verdicts(typed(result))


def _gate(**changes: Any) -> dict[str, Any]:
    agreement = make_result()["agreement"]
    agreement["pairs"][0]["gates"][0] |= changes
    return {"agreement": agreement}


def _agreement(pair: str = "pass", gate: bool = True) -> dict[str, Any]:
    agreement = make_result()["agreement"]
    agreement["pairs"][0]["status"] = pair
    agreement["pairs"][0]["gates"][0]["passed"] = gate
    return agreement


@pytest.mark.parametrize("path", [*map(stored.path, stored.NAMES), *H200], ids=lambda path: path.parent.name)
def test_what_samestep_wrote_holds(path: Path) -> None:
    consistency.check_verdicts(result_file.read(path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"contenders": [make_contender(), make_contender("jax"), make_contender()]},
            "contenders[2].name is 'torch' ag",
        ),
        (
            {"spec": {**make_result()["spec"], "rounds_requested": 4}},
            "spec.rounds_requested is 4; allowed: half of the 10 rounds",
        ),
        (
            {"spec": {**make_result()["spec"], "rounds_requested": 0}},
            "spec.rounds_requested is 0; allowed: half of the 10 rounds",
        ),
        ({"comparisons": [make_comparison("flax")]}, "comparisons[0].contender is 'flax'; allowed: a contender's name"),
        ({"comparisons": [make_comparison(ratio=RATIO)]}, "comparisons[0].ratio is from 0.6 to 0.7; allowed: around"),
        (
            {"contenders": [make_contender(**_step(interval=RATIO)), make_contender("jax")]},
            "contenders[0].step_seconds.interval is from 0.6 to 0.7",
        ),
        (
            {"comparisons": [make_comparison(verdict="SLOWER", ratio=make_comparison()["ratio"])]},
            "comparisons[0].verdict is SLOWER; allowed by its ratio: FASTER",
        ),
        (
            {"contenders": [make_contender(), make_contender("jax", unproven="the work was not done")]},
            "comparisons[0].verdict is FASTER; allowed: INVALID, for jax did not do the work that was timed",
        ),
        (
            {"comparisons": [make_comparison(verdict="INCONCLUSIVE", ratio=make_comparison()["ratio"])]},
            "comparisons[0].verdict is INCONCLUSIVE; allowed by its ratio: FASTER",
        ),
        (
            {"agreement": _agreement(gate=False)},
            "agreement.pairs[0].status is pass although the gate 'semantic' failed",
        ),
        ({"agreement": _agreement("skipped")}, "agreement.status is pass although that of pairs[0] is skipped"),
        (
            {"agreement": _agreement("fail")},
            "comparisons[0].verdict is FASTER although the agreement of jax with torch",
        ),
        (
            {"agreement": _agreement("fail"), "comparisons": [make_comparison(verdict="INVALID")]},
            "agreement.pairs[0].status is fail although no gate of it failed; allowed: pass, skipped",
        ),
        (
            {"agreement": make_result()["agreement"] | {"status": "fail"}},
            "agreement.status is fail; allowed by its pairs: pass",
        ),
        (_gate(value=1e300), "agreement.pairs[0].gates[0], 'semantic', has passed with the value 1e+300; allowed: a "),
        (
            _gate(value=None),
            "agreement.pairs[0].gates[0], 'semantic', has passed with the value None; allowed: a value",
        ),
        (_gate(name="scaling", limit=1e6), "agreement.pairs[0].gates[0], 'scaling', has passed with the value 3.1e-13"),
        (_gate(limit=-1.0), "agreement.pairs[0].gates[0], 'semantic', has the limit -1.0; allowed: 0 or more"),
        (
            {"agreement": {**make_result()["agreement"], "gates": _gate(value=1.0)["agreement"]["pairs"][0]["gates"]}},
            "agreement.gates[0], 'semantic', has passed with the value 1.0",
        ),
        ({"voided": [VOID]}, "comparisons[0].rounds is 10; allowed by samples and voided: 9"),
        ({"voided": [VOID, VOID]}, "voided[1].round is 3; allowed: each of the 10 rounds once"),
        ({"voided": [VOID | {"round": 11}]}, "voided[0].round is 11; allowed: each of the 10 rounds once"),
        ({"comparisons": [make_comparison()] * 2}, "comparisons[1] is of 'jax' against 'torch' again; allowed: each"),
        (
            {"agreement": make_result()["agreement"] | {"pairs": make_result()["agreement"]["pairs"] * 2}},
            "agreement.pairs[1] is of 'jax' against 'torch' again; allowed: each pair once",
        ),
        (
            {"contenders": [make_contender(images_per_second=1.0), make_contender("jax")]},
            "contenders[0].images_per_second is 1; allowed: 25600, by its step time",
        ),
        (
            {"contenders": [make_contender(), make_contender("jax", step_seconds=None)], "comparisons": []},
            "contenders[1].images_per_second is 25600; allowed: null, as it has no step time",
        ),
        (
            {"contenders": [make_contender(**_step(windows=[[[0, 1]]])), make_contender("jax")]},
            "contenders[0].step_seconds.windows is not one window a sample",
        ),
        (
            {"contenders": [make_contender(**_step(samples=[[1.0]], windows=[[[2, 1]]])), make_contender("jax")]},
            "contenders[0].step_seconds.windows has a window that ends before it starts",
        ),
        (
            {"telemetry": make_result()["telemetry"] | {"samples": {"seconds": [1.0], "power_watts": []}}},
            "telemetry.samples.power_watts has not one value a sample",
        ),
        (
            {"agreement": make_result()["agreement"] | {"trajectory": {"jax": CURVES}}},
            "agreement.trajectory['jax'] has losses and an envelope of unequal lengths",
        ),
    ],
)
def test_a_contradiction_is_named_with_its_place(changes: dict[str, Any], said: str) -> None:
    result = make_result(**changes)
    with pytest.raises(Refused) as refused:
        _checked(result)
    assert str(refused.value).startswith(said)


def test_an_invalid_comparison_needs_no_ratio_that_fits() -> None:
    result_file.validate(make_result(comparisons=[make_comparison(verdict="INVALID")]))


def test_deep_nesting_is_refused() -> None:
    nested: Any = None
    for _ in range(40):
        nested = [nested]
    with pytest.raises(Refused, match="nested too deeply or contains itself; allowed: 32 levels"):
        result_file.validate(make_result(environment={"x": nested}))
