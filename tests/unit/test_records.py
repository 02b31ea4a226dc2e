"""The files that a certificate is judged from."""

from pathlib import Path

import pytest

from compare import certification
from compare.data import store
from compare.evidence import Case
from compare.launcher import Launcher, Outcome, Outcomes
from tests.fakebackend import plans

CASES = (Case(8, None), Case(4, None))
OF_A_CASE = 2 * 2  # two contenders, two precisions


@pytest.mark.parametrize(("deterministic", "left"), [(False, 0), (True, OF_A_CASE + 2)])
def test_records_are_deleted_when_they_are_judged_but_those_that_were_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool, left: int
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), precision="float64", deterministic=deterministic)
    launcher, outcomes = Launcher(plan, tmp_path), Outcomes([Outcome(contender) for contender in plan.contenders])
    store.save(plan.dataset, launcher.dataset)
    certification.certify(launcher, outcomes, CASES, lambda *_: None)
    assert outcomes.certificates["other"].passed
    assert len(list(tmp_path.glob("record-*"))) == left
