"""When the children of contenders that work in turn are started; whole runs on one machine are in test_runner.py."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare.machines.fleet import Fleet
from compare.outcomes import Outcome
from compare.processes.launcher import Launcher
from tests.fakebackend import plans


def test_on_several_machines_each_contender_starts_when_it_is_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"))
    launcher = Launcher(replace(plan, fleet=cast(Fleet, SimpleNamespace(count=2))), tmp_path)
    events = list[str]()

    def started(outcome: Outcome, **_: Any) -> Any:
        events.append(f"start {outcome.contender.name}")
        return SimpleNamespace(greet=lambda _: {"versions": {}}, close=lambda: events.append("close"))

    monkeypatch.setattr(launcher, "started", started)
    with launcher.children([Outcome(contender) for contender in plan.contenders], purpose="turn") as children:
        for child in children:
            with child:
                events.append("work")
    first, then = ([f"start {name}", "work", "close"] for name in ("fake", "other"))
    assert list(dict.fromkeys(events[:4])) == first
    assert list(dict.fromkeys(events[4:])) == then
