"""Whatever a file holds, it is read rightly or refused: no traceback, no warning, no control code, no silent lie."""

import io
import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from compare.base.interface import Refused
from compare.report import terminal
from compare.reproduce import (
    bundle,
    claims,
    differences,
    recompute,
    regression,
    repetition,
    training_claims,
    verification,
)
from compare.reproduce import regression_report as regression_report
from compare.reproduce import reproduction_report as reproduction_report
from compare.reproduce import verification_report as verification_report
from compare.results import model, result_file
from tests.unit.mutations import SOURCES, consistent, results_mutated, text

pytestmark = pytest.mark.slow

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
UNTOUCHED = model.from_json(consistent())


def loaded(result: Any) -> model.Result | None:
    """Return a result that survived reading, None where it is refused in few words."""
    try:
        return result_file.parse(text(result))
    except Refused as error:
        words = str(error)
    assert 0 < len(words) < 2000
    return None


def shown(render: Any) -> str:
    stream = io.StringIO()
    render(Console(file=stream, width=80))
    assert not set(stream.getvalue()) & {"\x1b", "\x07", "\0", "\ud800"}
    return stream.getvalue()


@settings(QUICK, max_examples=150)
@given(results_mutated())
def test_a_mutated_result_is_refused_or_shown(mutated: dict[str, Any]) -> None:
    result = loaded(mutated)
    if result is not None:
        shown(lambda console: terminal.render(result, console))


@settings(QUICK, max_examples=150)
@given(results_mutated(), st.booleans())
def test_a_mutated_result_is_refused_or_compared(mutated: dict[str, Any], swapped: bool) -> None:
    result = loaded(mutated)
    if result is None:
        return
    pair = (result, UNTOUCHED) if swapped else (UNTOUCHED, result)
    other_work = regression.find_other_work(*pair)
    try:
        found = regression.find_changes(*pair, 0.03)
    except Refused:
        return
    json.dumps([asdict(change) for change in found], allow_nan=False)
    shown(lambda console: regression_report.render(found, 0.03, other_work, console))


@settings(QUICK, max_examples=100)
@given(results_mutated())
def test_a_mutated_result_is_refused_or_verified(mutated: dict[str, Any]) -> None:
    result = loaded(mutated)
    if result is None:
        return
    checked, checks = verification.verify(bundle.make(text(mutated)))
    assert checked == result
    assert [check.held for check in checks if "raw samples" not in check.question] == [True] * 5
    shown(lambda console: verification_report.render(result, checks, console))


@settings(QUICK, max_examples=100)
@given(results_mutated())
def test_claims_of_a_mutated_result_are_judged(mutated: dict[str, Any]) -> None:
    result = loaded(mutated)
    names = [contender.name for contender in UNTOUCHED.contenders]
    if result is None or [contender.name for contender in result.contenders] != names:
        return  # `repetition.make_plan` refuses other contenders
    found = [*claims.judge(result, UNTOUCHED), *training_claims.judge(result, UNTOUCHED)]
    assert {claim.outcome for claim in found} <= {claims.REPRODUCED, claims.NOT_REPRODUCED, claims.INCONCLUSIVE}
    differing = differences.find_before_run(
        result, UNTOUCHED.environment.extra, {"data_sha256": "0" * 64, "weights_sha256": None}
    )
    shown(lambda console: reproduction_report.render_start(result, differing, console))
    shown(lambda console: reproduction_report.render_claims(found, result, UNTOUCHED, console))


@settings(QUICK, max_examples=100)
@given(results_mutated())
def test_a_plan_for_a_mutated_result_is_made_or_refused(
    tmp_path_factory: pytest.TempPathFactory, mutated: dict[str, Any]
) -> None:
    result = loaded(mutated)
    if result is None:
        return
    try:
        plan = repetition.make_plan(result, {"out": tmp_path_factory.getbasetemp() / "plans"})
    except Refused:
        return
    assert [contender.name for contender in plan.contenders] == list(result.spec.contenders)
    spec = result.spec
    assert (plan.seed, plan.batch_size) == (spec.seed, spec.batch_size)
    assert plan.rounds in (spec.rounds, spec.rounds_requested)  # too few completed rounds are not repeated


def test_what_nobody_touched_comes_again() -> None:
    for source in SOURCES:
        assert recompute.find_mismatches(result_file.parse(text(source))) == []
