"""Compiled programs are kept from run to run. The second run compiles none. With any other fact, a run compiles all."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.base.commands import UserFiles
from compare.execution import first_steps, kept_programs, phases
from compare.execution.launcher import BESIDE_OTHERS, Launcher
from compare.execution.run_state import KeptProgram, RunState
from compare.report import measurements
from compare.settings.plan import Plan
from compare.store.entries import Entry, Store, compute_key
from compare.user_models.match_report import Pairing
from compare.user_models.matching import Matching
from tests.fakebackend import plans
from tests.unit.result_factory import typed
from tests.unit.stage import Result, Stage

pytestmark = pytest.mark.slow

COMPILED = {"fake": {"compile_seconds": 8.0}, "other": {"compile_seconds": 4.0}}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path, monkeypatch)
    stage.cache = tmp_path / "cache"
    return stage


def run(stage: Stage, **changes: Any) -> Result:
    return stage.run(**{"script": COMPILED, "agreement": False, **changes})


def count(stage: Stage, word: str) -> int:
    """Return how often the processes of contenders had to do this with a program so far."""
    return sum(line.split()[1] == word for line in (stage.folder / "programs.log").read_text().splitlines())


def compiled(stage: Stage) -> int:
    return count(stage, "compiles")


def entries(stage: Stage, kind: str = "programs") -> list[Entry]:
    return [entry for entry in Store(stage.folder / "cache" / "samestep").entries() if entry.kind == kind]


def column(result: Result, name: str) -> list[Any]:
    return [contender.get(name) for contender in result["contenders"]]


def test_a_second_run_loads_the_programs_and_reports_the_earlier_compile_time(stage: Stage) -> None:
    fresh = run(stage, cold_compile=True)
    first = compiled(stage)
    again = run(stage)
    assert compiled(stage) == first == 2
    assert column(fresh, "program_kept") == column(fresh, "compile_measured") == [None, None]
    assert column(fresh, "compile_reason") == column(again, "compile_reason") == [None, None]
    kept = [{"key": entry.key, "created": entry.created} for entry in entries(stage)]
    assert {each["key"] for each in column(again, "program_kept")} == {each["key"] for each in kept}
    assert column(again, "compile_seconds") == column(fresh, "compile_seconds")
    assert column(fresh, "compile_seconds") == pytest.approx([8, 4], rel=0.01)
    measured = {entry.created for entry in entries(stage, "compile-times")}
    assert set(column(again, "compile_measured")) <= measured
    lines = list(measurements.list_remarks(typed(again).contenders))
    for name, program in zip(("fake", "other"), column(again, "program_kept"), strict=True):
        assert any(line.startswith(f"{name}: its programs were compiled on {program['created']}") for line in lines)
        assert any(line.startswith(f"{name}: its compile time was measured on ") for line in lines)


def test_processes_of_rounds_take_the_trace_that_the_first_process_has_made(stage: Stage) -> None:
    run(stage)
    contenders, rounds = 2, 2
    assert count(stage, "loads") >= contenders * rounds
    assert count(stage, "traces") == contenders


def test_processes_that_search_for_kernels_again_trace_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.settings.tunings.keeps_search", lambda *_: True)
    run(stage, search_anew=True)
    assert count(stage, "traces") == count(stage, "loads") + count(stage, "compiles")


def test_a_cold_compile_uses_no_kept_program_and_keeps_the_new_one(stage: Stage) -> None:
    run(stage)
    before = {entry.key: (entry.folder / "programs.tar").stat().st_mtime_ns for entry in entries(stage)}
    cold = run(stage, cold_compile=True)
    assert compiled(stage) == 4
    assert column(cold, "program_kept") == column(cold, "compile_measured") == [None, None]
    after = {entry.key: (entry.folder / "programs.tar").stat().st_mtime_ns for entry in entries(stage)}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())


def test_a_contender_that_compiles_nothing_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    result = run(stage, script={"fake": {"fault": "uncompiled"}})
    assert column(result, "compile_reason")[0] == "nothing is compiled: it runs op by op"
    assert "op by op" not in column(result, "compile_reason")[1]


def test_programs_that_compile_beside_others_have_no_compile_time_until_somebody_asks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    monkeypatch.setattr("compare.settings.tunings.keeps_search", lambda backend, *_: backend == "other")
    beside = run(stage)
    assert column(beside, "compile_seconds")[0] is None
    assert column(beside, "compile_reason") == [
        "the program was compiled beside other work; --cold-compile measures it",
        None,  # its search for kernels ran alone
    ]
    assert column(run(stage), "compile_reason")[0].startswith("the program was kept from an earlier run; --cold")
    assert column(run(stage, cold_compile=True), "compile_seconds")[0] > 0
    later = run(stage)
    assert column(later, "compile_seconds")[0] > 0
    assert None not in column(later, "compile_measured")


def test_two_contenders_with_the_same_programs_share_an_entry(stage: Stage) -> None:
    stage.run("fake", "fake", agreement=False)
    assert len(entries(stage)) == 1
    again = stage.run("fake", "fake", agreement=False)
    assert None not in column(again, "program_kept")


def test_a_damaged_archive_is_compiled_anew(stage: Stage) -> None:
    run(stage)
    for entry in entries(stage):
        (entry.folder / "programs.tar").write_bytes(b"no archive")
    assert column(run(stage), "program_kept") == [None, None]
    assert compiled(stage) == 4
    assert None not in column(run(stage), "program_kept")


def test_an_interrupted_run_keeps_its_programs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(phases.usage, "measure", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(stage)
    assert None not in column(run(stage), "program_kept")


def test_a_folder_that_others_may_change_keeps_no_compile_time(stage: Stage) -> None:
    assert stage.cache is not None
    folder = stage.cache / "samestep" / "compile-times"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert None not in column(run(stage, cold_compile=True), "compile_seconds")
    assert column(run(stage), "compile_seconds") == [None, None]


class Facts:
    """The key of a contender's programs, and how changes change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = plans.make(folder / "out", ("fake", "other"))

    def key(self, plan: Plan | None = None, index: int = 0, pairing: Pairing | None = None) -> str:
        plan = plan or self.plan
        state = RunState.begin(plan, pairing)
        return compute_key(kept_programs.list_facts(Launcher(plan, self.folder), state, state.runs[index]))


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    plans.register(monkeypatch, tmp_path)
    return Facts(tmp_path)


def test_memory_is_measured_at_once_if_the_programs_are_kept(facts: Facts) -> None:
    state = RunState.begin(facts.plan, None)
    contender = state.runs[0]
    _, queue = first_steps.make_queues(Launcher(facts.plan, facts.folder), state, contender, 1, lambda: None)
    (memory,) = queue.jobs
    assert not memory.may_begin()  # a compiler needs memory too
    contender.program_kept = KeptProgram("key", "today")
    assert memory.may_begin()


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "tf32"},
        {"batch_size": 32},
        {"accumulate": 2},
        {"devices": 2},
        {"batch_norm": "local"},
        {"deterministic": True},
        {"epochs": 2},
        {"device": "cuda"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_changed_setting_is_a_miss(facts: Facts, changes: dict[str, Any]) -> None:
    plan = replace(facts.plan, **changes)
    if "devices" in changes:
        plan = replace(plan, contenders=(replace(plan.contenders[0], tuning="stock+ddp"), plan.contenders[1]))
    assert facts.key(plan) != facts.key()


def test_the_other_contender_another_knob_workload_or_number_of_images_is_a_miss(facts: Facts) -> None:
    plan = facts.plan
    first, second = plan.contenders
    dataset = plan.dataset
    fewer = replace(dataset.train, images=dataset.train.images[:-1], labels=dataset.train.labels[:-1])
    keys = [
        facts.key(),
        facts.key(index=1),
        facts.key(replace(plan, contenders=(replace(first, tuning="compile"), second))),
        facts.key(replace(plan, workload=replace(plan.workload, label_smoothing=0.1))),
        facts.key(replace(plan, dataset=replace(dataset, train=fewer))),
        facts.key(replace(plan, dataset=replace(dataset, test=fewer))),
        facts.key(pairing=Pairing({}, Matching((), ()), code={"torch": UserFiles({"model.py": "a"}, None)})),
    ]
    assert len(set(keys)) == len(keys)


def test_seeds_rounds_and_other_contenders_decide_no_program(facts: Facts) -> None:
    first, second = facts.plan.contenders
    other = replace(facts.plan, seed=3, rounds=7, energy=False, out=facts.folder / "elsewhere", deadline=1.0)
    assert facts.key(other) == facts.key()
    assert facts.key(replace(facts.plan, contenders=(second, first)), index=1) == facts.key()


def test_the_seed_decides_a_program_that_holds_weights(facts: Facts) -> None:
    first, second = facts.plan.contenders
    held = replace(first, tuning="compile+constant-weights")
    plan = replace(facts.plan, contenders=(held, second), task="infer", batch_sizes=(1,))
    assert facts.key(replace(plan, seed=3)) != facts.key(plan)
    assert facts.key(replace(plan, seed=3), index=1) == facts.key(plan, index=1)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("compare.machine.environment.read_cpu_model", lambda: "another"),
        ("compare.machine.cpu.count_usable_cores", lambda: 77),
        ("sys.version", "3.99"),
        ("compare.execution.store_keys._list_distributions", lambda: (("numpy", ("9", "")),)),
        ("compare.execution.store_keys.find_sources", lambda package: []),
        ("compare.machine.variables.make_child_environment", lambda *_, **__: {"XLA_FLAGS": "--another"}),
    ],
)
def test_another_machine_version_or_source_is_a_miss(
    facts: Facts, monkeypatch: pytest.MonkeyPatch, place: str, value: Callable[[], Any]
) -> None:
    before = facts.key()
    monkeypatch.setattr(place, value)
    assert facts.key() != before


@pytest.mark.parametrize("gpus", [{"gpus": [{"name": "H200"}]}, {"driver": "600"}, {"cuda_driver": "14.0"}])
def test_another_gpu_or_driver_is_a_miss(facts: Facts, monkeypatch: pytest.MonkeyPatch, gpus: dict[str, Any]) -> None:
    plan = replace(facts.plan, device="cuda")
    before = facts.key(plan)
    absent = {"gpus": [], "driver": None, "cuda_driver": None}
    monkeypatch.setattr("compare.machine.nvml.describe", lambda: absent | gpus)
    assert facts.key(plan) != before
