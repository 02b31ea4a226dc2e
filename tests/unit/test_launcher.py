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
    assert Launcher(there, tmp_path).keeps_search(Outcome(there.contenders[0])) is alone


@pytest.mark.parametrize(
    ("kept", "asked", "anew"),
    [(True, True, True), (True, None, True), (True, False, False), (False, None, False), (False, False, False)],
)
def test_kernels_are_searched_for_anew_where_that_changes_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool, asked: bool | None, anew: bool
) -> None:
    monkeypatch.setattr("compare.tuning.tunings.keeps_search", lambda backend, *_: kept and backend == "jax")
    made = plan.make(["torch", "jax"], out=tmp_path / "out", device="cpu", search_anew=asked)
    assert made.search_anew is anew


@pytest.mark.parametrize(
    ("contender", "device", "anew", "searched"),
    [
        ("jax:tuned", "cuda", False, "once"),
        ("jax:tuned", "cuda", True, "every round"),
        ("jax:tuned", "cpu", True, None),
        ("jax:stock+kernel-search=off", "cuda", False, None),
        ("torch:tuned", "cuda", False, "every round"),
        ("torch:compiled", "cuda", False, None),
        ("torch:tuned+max-autotune", "cuda", False, "once"),
    ],
)
def test_a_result_tells_how_often_kernels_were_searched_for(
    tmp_path: Path, contender: str, device: str, anew: bool, searched: str | None
) -> None:
    made = plan.make(["torch", "jax"], out=tmp_path / "out", device="cpu", workload="cifar-cnn")
    there = replace(made, device=device, search_anew=anew, contenders=tuple(contenders.parse([contender], 1)))
    assert judgement._kernel_search(there, there.contenders[0]) == searched


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
