"""Whole runs of scripted contenders in a folder of their own: real runner, processes, worker and judgement."""

from pathlib import Path
from typing import Any

import pytest

from compare.base.interruptions import HeldSignals
from compare.execution import build_result, phases, ready_children
from compare.reproduce import bundle, recompute, verification
from compare.results import model, result_file, verdicts
from tests.fakebackend import plans

Result = dict[str, Any]


class Stage:
    """Runs scripted contenders. `progress` has what the runs said of theirs.

    Runs with the same `cache` share kept certificates. Without one, each run has its own. No process starts ahead, so
    with `cold_compile` the processes of a contender have fixed numbers.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self.cache: Path | None = None
        monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 0)
        self.progress: list[tuple[str, int, int]] = []

    def run(self, *texts: str, script: dict[str, dict[str, Any]] | None = None, **changes: Any) -> Result:
        plans.register(self._monkeypatch, self.folder, script)
        if self.cache is not None:
            self._monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))
        plan = plans.make(self.folder / "out", texts or ("fake", "other"), **changes)
        outcomes = phases.run_comparison(plan, lambda *step: self.progress.append(step), HeldSignals())
        assert not plans.remaining(plans.started(self.folder), within=0.5)
        result = build_result.build(outcomes, ["samestep", "compare", *texts])
        return _check_and_read(result, plan.out)

    def agree(
        self, *texts: str, script: dict[str, Any] | None = None, seeds: int = 2, children: int = 1, **changes: Any
    ) -> Result:
        plans.register(self._monkeypatch, self.folder, script, children)
        plan = plans.make(self.folder / "out", texts or ("fake", "other"), timed=False, **changes)
        outcomes = phases.run_agreement(plan, seeds, lambda *step: self.progress.append(step), HeldSignals())
        assert not plans.remaining(plans.started(self.folder), within=0.5)
        result = build_result.build(outcomes, ["samestep", "agree", *texts])
        return _check_and_read(result, plan.out)

    @property
    def log(self) -> list[list[str]]:
        """[name, process, pid, place] of every call, in order."""
        return [line.split() for line in (self.folder / "calls.log").read_text().splitlines()]

    def calls(self, place: str) -> list[list[str]]:
        """Return those of every call to `place`."""
        return [call for call in self.log if call[-1] == place]


def _check_and_read(result: model.Result, folder: Path) -> Result:
    """Return a result. It survives its file and a bundle, and its raw samples give every figure again."""
    path = result_file.write(result, folder)
    assert result_file.read(path) == result
    assert recompute.find_mismatches(result) == []
    packed, checks = verification.verify(bundle.make(path.read_bytes()))
    assert packed == result
    assert all(check.held for check in checks)
    return model.to_json(result)


def exit_code(result: Result) -> int:
    typed = model.from_json(result)
    if verdicts.contender_failed(typed):
        return 3
    return 1 if verdicts.claim_failed(typed) else 0
