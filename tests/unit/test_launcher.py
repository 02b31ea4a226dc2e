"""When the children of contenders that work in turn start. test_beside_others.py shows whole runs."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare.base.commands import Greeting
from compare.base.interface import INFER, TRAIN
from compare.cluster.cluster import Cluster
from compare.execution import build_result, phases
from compare.execution.kept_certificates import KeptCertificates
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import variables
from compare.settings import contenders, plan
from compare.settings.options import Settings
from tests.fakebackend import plans


def test_on_several_machines_each_contender_starts_when_it_is_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path)
    made = plans.make(tmp_path / "out", ("fake", "other"))
    launcher = Launcher(replace(made, cluster=cast(Cluster, SimpleNamespace(count=2))), tmp_path)
    events = list[str]()

    def started(outcome: ContenderRun, **_: Any) -> Any:
        events.append(f"start {outcome.contender.name}")
        return SimpleNamespace(greet=lambda: Greeting(1, "fake", {}), close=lambda: events.append("close"))

    monkeypatch.setattr(launcher, "start", started)
    with launcher.children([ContenderRun(contender) for contender in made.contenders], purpose="turn") as children:
        for child in children:
            with child:
                events.append("work")
    first, then = ([f"start {name}", "work", "close"] for name in ("fake", "other"))
    assert list(dict.fromkeys(events[:4])) == first
    assert list(dict.fromkeys(events[4:])) == then


def test_bytecode_that_python_keeps_nowhere_is_kept_for_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kept = tmp_path / "site" / "framework.py", tmp_path / "kept"
    source.parent.mkdir()
    source.write_text("import decimal\n")
    monkeypatch.syspath_prepend(source.parent)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    assert not variables.make_bytecode_environment("framework", kept)  # Python keeps it
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    added = variables.make_bytecode_environment("framework", kept)
    forbidding = os.environ | {"PYTHONPATH": str(source.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", "import framework"], env=forbidding | added, check=True)
    assert len(list(kept.rglob("framework.*.pyc"))) == len(list(kept.rglob("decimal.*.pyc"))) == 1
    assert not list(source.parent.rglob("*.pyc"))
    cache_from_source = Path(importlib.util.cache_from_source(str(source)))
    cache_from_source.parent.mkdir()
    cache_from_source.touch()
    assert not variables.make_bytecode_environment("framework", kept)  # it was installed with it
    assert not variables.make_bytecode_environment("no_such_framework", kept)


@pytest.mark.parametrize(("task", "keeps"), [(INFER, False), (TRAIN, True)])
def test_a_cold_start_is_timed_as_users_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, keeps: bool
) -> None:
    plans.register(monkeypatch, tmp_path)
    made = replace(plans.make(tmp_path / "out", ("fake", "other")), task=task)
    monkeypatch.setattr(variables, "make_bytecode_environment", lambda *_: {variables.BYTECODE: "kept"})
    environments = list[dict[str, str]]()

    def noted(name: str, package: str, environment: dict[str, str], *_: Any) -> Any:
        environments.append(environment)
        return SimpleNamespace(pid=0)

    monkeypatch.setattr("compare.execution.launcher.Child", noted)
    Launcher(made, tmp_path).start(ContenderRun(made.contenders[0]), purpose="usage")
    assert (variables.BYTECODE in environments[0]) is keeps


@pytest.mark.parametrize(
    ("machines", "cold", "expected"),
    [
        (1, True, ["start contenders", "train fake", "train other"]),
        (2, False, ["start contenders", "train fake", "train other"]),
    ],
)
def test_contenders_that_are_asked_for_their_compile_time_start_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machines: int, cold: bool, expected: list[str]
) -> None:
    plans.register(monkeypatch, tmp_path)
    made = plans.make(tmp_path / "out", ("fake", "other"), cold_compile=cold)
    there = replace(made, device="cuda", cluster=cast(Cluster, SimpleNamespace(count=machines, share=lambda: None)))
    launcher, told = Launcher(there, tmp_path), list[str]()
    child = SimpleNamespace(greet=lambda: Greeting(1, "fake", {}), close=lambda: None)
    monkeypatch.setattr(launcher, "start", lambda *_, **__: child)
    monkeypatch.setattr(phases.jobs, "run_jobs", lambda launcher, queues, progress, **_: progress(0, 1))
    monkeypatch.setattr(phases.jobs, "run_calls", lambda *_: None)
    outcomes = RunState.begin(there)
    kept = KeptCertificates(None, {})
    assert len(phases._train(launcher, outcomes, lambda phase, *_: told.append(phase), kept, 3)) == 2
    assert told == expected


def test_each_contender_has_a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.register(monkeypatch, tmp_path)
    made = plans.make(tmp_path / "out", ("fake", "fake:stock"))
    found = set[str]()

    def child(name: str, package: str, environment: dict[str, str], *_: Any) -> Any:
        found.add(Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent.name)
        return SimpleNamespace(pid=1)

    monkeypatch.setattr("compare.execution.launcher.Child", child)
    launcher = Launcher(made, tmp_path)
    for contender in made.contenders:
        launcher.start(ContenderRun(contender), purpose="round")
    assert found == {"cache-fake", "cache-fake:stock"}


@pytest.mark.parametrize(
    ("contender", "alone"),
    [("jax:tuned", True), ("jax:stock", True), ("torch:tuned", False), ("torch:compile+max-autotune", True)],
)
def test_only_a_search_that_is_kept_is_made_alone(tmp_path: Path, contender: str, alone: bool) -> None:
    made = plan.make(
        Settings(contenders=[contender, "torch"], out=tmp_path / "out", device="cpu", workload="cifar-cnn")
    )
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
        ("jax:tuned", {"cluster": SimpleNamespace(count=2)}, None),
        ("jax:stock+kernel-search=off", {}, None),
        ("torch:tuned", {}, "every round"),
        ("torch:compiled", {}, None),
    ],
)
def test_a_result_tells_how_often_kernels_were_searched_for(
    tmp_path: Path, contender: str, changes: dict[str, Any], searched: str | None
) -> None:
    made = plan.make(
        Settings(contenders=["torch", "jax"], out=tmp_path / "out", device="cpu", workload="cifar-cnn", rounds=2)
    )
    there = replace(made, **{"device": "cuda", **changes})
    assert build_result._kernel_search(there, ContenderRun(contenders.parse([contender], 1)[0])) == searched


def test_what_a_users_own_flags_turn_off_is_no_search(tmp_path: Path) -> None:
    made = plan.make(
        Settings(contenders=["torch", "jax"], out=tmp_path / "out", device="cpu", workload="cifar-cnn", rounds=2)
    )
    there = replace(made, device="cuda")
    outcome = ContenderRun(there.contenders[1], settings={"kernel-search": False})
    assert build_result._kernel_search(there, outcome) is None


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
    made = plan.make(
        Settings(contenders=[contender, "torch"], out=tmp_path / "out", device="cpu", workload="cifar-cnn")
    )
    there = replace(made, device=device, cluster=cast(Cluster, SimpleNamespace(count=machines)))
    assert Launcher(there, tmp_path).may_load_beside_others(ContenderRun(there.contenders[0])) is may


@pytest.mark.parametrize(
    ("purpose", "kept"),
    [("matching", True), ("certificate", True), ("training", False), ("usage", False), ("round", False)],
)
def test_only_programs_whose_compile_time_nobody_reads_are_kept_from_run_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, purpose: str, kept: bool
) -> None:
    found = list[Path]()

    def child(name: str, package: str, environment: dict[str, str], *_: Any) -> Any:
        found.append(Path(environment["TORCHINDUCTOR_CACHE_DIR"]))
        return SimpleNamespace(pid=1)

    plans.register(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("compare.execution.launcher.Child", child)
    made = plans.make(tmp_path / "out", ("fake", "other"))
    (tmp_path / "scratch").mkdir()
    Launcher(made, tmp_path / "scratch").start(ContenderRun(made.contenders[0]), purpose=purpose)
    assert found[0].is_relative_to(tmp_path / ("user" if kept else "scratch"))


@pytest.mark.parametrize(("tuning", "machines"), [("stock+ddp", 2), ("stock", 1)])
def test_a_contender_is_told_of_the_machines_that_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuning: str, machines: int
) -> None:
    told = list[int]()

    def environment(*_: Any, machines: int, **__: Any) -> dict[str, str]:
        told.append(machines)
        return {}

    plans.register(monkeypatch, tmp_path)
    monkeypatch.setattr("compare.machine.variables.make_child_environment", environment)
    monkeypatch.setattr("compare.execution.launcher.Child", lambda *_: SimpleNamespace(pid=1))
    made = plans.make(tmp_path / "out", (f"fake:{tuning}", "other:stock+ddp"), devices=2, batch_size=8)
    share = SimpleNamespace(start=lambda *_: None, environment={})
    cluster = cast(Cluster, SimpleNamespace(count=2, share=lambda: share))
    Launcher(replace(made, cluster=cluster), tmp_path).start(ContenderRun(made.contenders[0]), purpose="round")
    assert told == [machines]
