"""When the children of contenders that work in turn are started; whole runs: test_beside_others.py."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare import judgement, plan
from compare.machines.fleet import Fleet
from compare.outcomes import Outcome
from compare.processes.launcher import Launcher
from compare.tuning import contenders
from tests.fakebackend import plans


def test_on_several_machines_each_contender_starts_when_it_is_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path)
    made = plans.make(tmp_path / "out", ("fake", "other"))
    launcher = Launcher(replace(made, fleet=cast(Fleet, SimpleNamespace(count=2))), tmp_path)
    events = list[str]()

    def started(outcome: Outcome, **_: Any) -> Any:
        events.append(f"start {outcome.contender.name}")
        return SimpleNamespace(greet=lambda _: {"versions": {}}, close=lambda: events.append("close"))

    monkeypatch.setattr(launcher, "started", started)
    with launcher.children([Outcome(contender) for contender in made.contenders], purpose="turn") as children:
        for child in children:
            with child:
                events.append("work")
    first, then = ([f"start {name}", "work", "close"] for name in ("fake", "other"))
    assert list(dict.fromkeys(events[:4])) == first
    assert list(dict.fromkeys(events[4:])) == then


@pytest.mark.parametrize(("cold", "folders"), [(True, {"cache-fake", "cache-fake:stock"}), (False, {"cache-fake"})])
def test_contenders_share_a_cache_where_nobody_asks_what_an_empty_one_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool, folders: set[str]
) -> None:
    plans.register(monkeypatch, tmp_path)
    made = plans.make(tmp_path / "out", ("fake", "fake:stock"), cold_compile=cold)
    found = set[str]()

    def child(name: str, package: str, environment: dict[str, str], *_: Any) -> Any:
        found.add(Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent.name)
        return SimpleNamespace(pid=1)

    monkeypatch.setattr("compare.processes.launcher.Child", child)
    launcher = Launcher(made, tmp_path)
    for contender in made.contenders:
        launcher.started(Outcome(contender), purpose="round")
    assert found == folders


@pytest.mark.parametrize(
    ("contender", "alone"),
    [("jax:tuned", True), ("jax:stock", True), ("torch:tuned", False), ("torch:compile+max-autotune", True)],
)
def test_only_a_search_that_is_kept_is_made_alone(tmp_path: Path, contender: str, alone: bool) -> None:
    made = plan.make([contender, "torch"], out=tmp_path / "out", device="cpu", workload="cifar-cnn")
    there = replace(made, device="cuda")
    assert there.keeps_search(there.contenders[0]) is alone


@pytest.mark.parametrize(
    ("contender", "changes", "searched"),
    [
        ("jax:tuned", {}, "once"),
        ("jax:tuned", {"search_anew": True}, "every round"),
        ("jax:tuned", {"device": "cpu"}, None),
        ("jax:tuned", {"rounds": 0}, None),
        ("jax:tuned", {"deterministic": True}, None),
        ("jax:tuned", {"fleet": SimpleNamespace(count=2)}, None),
        ("jax:stock+kernel-search=off", {}, None),
        ("torch:tuned", {}, "every round"),
        ("torch:compiled", {}, None),
        ("torch:tuned+max-autotune", {}, "once"),
    ],
)
def test_a_result_tells_how_often_kernels_were_searched_for(
    tmp_path: Path, contender: str, changes: dict[str, Any], searched: str | None
) -> None:
    made = plan.make(["torch", "jax"], out=tmp_path / "out", device="cpu", workload="cifar-cnn", rounds=2)
    there = replace(made, **{"device": "cuda", **changes})
    assert judgement._kernel_search(there, Outcome(contenders.parse([contender], 1)[0])) == searched


def test_what_a_users_own_flags_turn_off_is_no_search(tmp_path: Path) -> None:
    made = plan.make(["torch", "jax"], out=tmp_path / "out", device="cpu", workload="cifar-cnn", rounds=2)
    there = replace(made, device="cuda")
    outcome = Outcome(there.contenders[1], settings={"kernel-search": False})
    assert judgement._kernel_search(there, outcome) is None


@pytest.mark.parametrize(
    ("device", "machines", "contender", "may"),
    [
        ("cuda", 1, "jax:tuned", True),
        ("cuda", 1, "torch:compiled", True),
        ("cuda", 1, "torch:tuned", False),
        ("cuda", 2, "jax:tuned", False),
        ("cpu", 1, "jax:tuned", False),
    ],
)
def test_beside_others_only_programs_are_loaded_that_they_cannot_change(
    tmp_path: Path, device: str, machines: int, contender: str, may: bool
) -> None:
    made = plan.make([contender, "torch"], out=tmp_path / "out", device="cpu", workload="cifar-cnn")
    there = replace(made, device=device, fleet=cast(Fleet, SimpleNamespace(count=machines)))
    assert Launcher(there, tmp_path).may_load_beside_others(Outcome(there.contenders[0])) is may
