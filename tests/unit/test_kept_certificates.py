"""Certificates that are kept from run to run: the second run makes none, and any other fact makes a new one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.base.commands import UserFiles
from compare.base.workloads import PAIR
from compare.execution import kept_certificates, phases, store_keys
from compare.execution.launcher import Launcher
from compare.execution.run_state import RunState
from compare.report import sentences
from compare.results import model
from compare.settings.plan import Plan
from compare.store.entries import Entry, Store, compute_key
from compare.user_models.match_report import Pairing
from compare.user_models.matching import Matching
from tests.fakebackend import plans
from tests.unit.stage import Result, Stage

RECORDS = ("record", "update")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path, monkeypatch)
    stage.cache = tmp_path / "cache"
    return stage


def opened(stage: Stage) -> int:
    return len({pid for _, _, pid, _ in stage.calls("open")})


def certificates(stage: Stage) -> list[Entry]:
    return [entry for entry in Store(stage.folder / "cache" / "samestep").entries() if entry.kind == "certificates"]


def pairs(result: Result) -> list[Any]:
    return [pair.get("kept") for pair in result["agreement"]["pairs"]]


def names(result: Result) -> list[list[str]]:
    return [sorted(gate["name"] for gate in pair["gates"]) for pair in result["agreement"]["pairs"]]


def test_a_second_run_uses_the_certificate_and_starts_no_process_for_one(stage: Stage) -> None:
    fresh = stage.run()
    first = opened(stage)
    again = stage.run()
    second = opened(stage) - first
    assert pairs(fresh) == [None]
    (kept,) = pairs(again)
    (entry,) = certificates(stage)
    assert kept == {"key": entry.key, "created": entry.created}
    assert names(again) == names(fresh)
    assert again["agreement"]["status"] == "pass"
    assert again["agreement"]["pairs"][0]["tensors"] == fresh["agreement"]["pairs"][0]["tensors"]
    assert second == 2 * (1 + 1 + 2)  # training, memory and two rounds of each contender
    assert first > second
    assert not any(phase.startswith("certify") for phase, *_ in stage.progress[len(stage.progress) // 2 + 1 :])
    lines = sentences.describe_agreement(model.from_json(again).agreement)
    assert any(entry.created in line and entry.key[:12] in line for line in lines)


def test_certify_again_replaces_the_kept_certificate(stage: Stage) -> None:
    stage.run()
    first = opened(stage)
    assert pairs(stage.run(certify_again=True)) == [None]
    assert opened(stage) == 2 * first
    assert len(certificates(stage)) == 1


@pytest.mark.slow
def test_only_the_new_pair_of_a_run_is_certified(stage: Stage) -> None:
    stage.run("fake", "other")
    result = stage.run("fake", "other", "third")
    first, second = pairs(result)
    assert first is not None
    assert second is None
    assert names(result)[0] == names(result)[1]
    assert pairs(stage.run("fake", "other", "third")) != [None, None]
    assert None not in pairs(stage.run("fake", "third"))


def test_a_failed_certificate_is_not_kept(stage: Stage) -> None:
    assert stage.run(script={"other": {"fault": "unlike"}})["agreement"]["status"] == "fail"
    assert not certificates(stage)


def test_a_broken_file_and_other_reports_of_the_processes_need_a_new_certificate(stage: Stage) -> None:
    stage.run()
    (entry,) = certificates(stage)
    path = entry.folder / "certificate.json"
    path.write_text("{")
    assert pairs(stage.run()) == [None]
    value = json.loads(path.read_text())
    value["reports"][1][0]["tf32"] = "another"
    path.write_text(json.dumps(value))
    result = stage.run()
    assert pairs(result) == [None]
    assert "update" in names(result)[0]
    assert pairs(stage.run()) != [None]


def test_an_interrupted_run_keeps_what_it_has_certified(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(phases.usage, "measure", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stage.run()
    assert pairs(stage.run()) != [None]


def test_a_folder_that_others_may_change_keeps_nothing_and_the_result_says_so(stage: Stage) -> None:
    assert stage.cache is not None
    folder = stage.cache / "samestep" / "certificates"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    result = stage.run()
    assert not list(folder.iterdir())
    (note,) = [note for note in result["agreement"]["pairs"][0]["notes"] if "not kept" in note]
    assert "can be written to by other users" in note
    assert f"  {note}" in sentences.describe_agreement(model.from_json(result).agreement)


class Facts:
    """The key of a pair's certificate, and how changes change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = plans.make(folder / "out", ("fake", "other"))

    def key(self, plan: Plan | None = None, steps: int = 3) -> str:
        plan = plan or self.plan
        state = RunState.begin(plan)
        return compute_key(kept_certificates.list_facts(Launcher(plan, self.folder), state, state.runs[1], steps))


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    plans.register(monkeypatch, tmp_path)
    return Facts(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "tf32"},
        {"batch_size": 32},
        {"accumulate": 2},
        {"devices": 2},
        {"batch_norm": "local"},
        {"deterministic": True},
        {"seed": 1},
        {"epochs": 2},
        {"device": "cuda"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_changed_setting_is_a_miss(facts: Facts, changes: dict[str, Any]) -> None:
    assert facts.key(replace(facts.plan, **changes)) != facts.key()


def test_settings_that_decide_no_certificate_are_no_miss(facts: Facts) -> None:
    other = replace(facts.plan, rounds=7, margin=0.5, energy=False, out=facts.folder / "elsewhere", deadline=1.0)
    assert facts.key(other) == facts.key()


def test_other_contenders_workloads_data_and_steps_are_misses(facts: Facts) -> None:
    plan = facts.plan
    first, second = plan.contenders
    images = plan.dataset.train.images.copy()
    images[0, 0, 0, 0] += 1
    keys = [
        facts.key(),
        facts.key(steps=4),
        facts.key(replace(plan, contenders=(second, first))),
        facts.key(replace(plan, contenders=(first, replace(second, tuning="compile")))),
        facts.key(replace(plan, workload=replace(plan.workload, label_smoothing=0.1))),
        facts.key(replace(plan, dataset=replace(plan.dataset, train=replace(plan.dataset.train, images=images)))),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ["XLA_FLAGS", "TORCH_LOGS", "OMP_NUM_THREADS", "LD_LIBRARY_PATH", "PYTHONPATH"])
def test_a_changed_variable_is_a_miss(facts: Facts, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = facts.key()
    monkeypatch.setenv(name, "another")
    assert facts.key() != before


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("compare.machine.environment.read_cpu_model", lambda: "another"),
        ("compare.machine.cpu.count_usable_cores", lambda: 77),
        ("sys.version", "3.99"),
        ("platform.libc_ver", lambda: ("glibc", "9")),
        ("compare.execution.store_keys._list_distributions", lambda: (("numpy", ("9", "")),)),
        ("compare.machine.variables.make_child_environment", lambda *_, **__: {"XLA_FLAGS": "--another"}),
    ],
)
def test_another_machine_or_version_is_a_miss(
    facts: Facts, monkeypatch: pytest.MonkeyPatch, place: str, value: Callable[[], Any]
) -> None:
    before = facts.key()
    monkeypatch.setattr(place, value)
    assert facts.key() != before


def test_changed_files_or_weights_of_a_user_s_pair_are_misses(facts: Facts) -> None:
    def key(digest: str, weights: bytes) -> str:
        path = facts.folder / "weights"
        path.write_bytes(weights)
        plan = replace(facts.plan, weights=str(path))
        matching = Matching((), ())
        pairing = Pairing({}, matching, code={"torch": UserFiles({"model.py": digest}, None)})
        state = RunState.begin(plan, pairing)
        return compute_key(kept_certificates.list_facts(Launcher(plan, facts.folder), state, state.runs[1], 3))

    assert key("a", b"1") == key("a", b"1")
    assert len({key("a", b"1"), key("b", b"1"), key("a", b"2")}) == 3


def test_code_with_unknown_inputs_is_not_kept(facts: Facts) -> None:
    model = replace(facts.plan.workload.model, family=PAIR)
    plan = replace(facts.plan, workload=replace(facts.plan.workload, model=model), weights="weights")

    def explain(unknown: str | None) -> str | None:
        pairing = Pairing({}, Matching((), ()), code={"torch": UserFiles({}, None), "jax": UserFiles({}, unknown)})
        return store_keys.explain_unknown_facts(plan, pairing)

    assert explain(None) is None
    assert explain("model.py uses environ") == "model.py uses environ"
    assert store_keys.explain_unknown_facts(plan, None) is not None


@pytest.mark.parametrize("gpus", [{"gpus": [{"name": "H200"}]}, {"driver": "600"}, {"cuda_driver": "14.0"}])
def test_another_gpu_or_driver_is_a_miss(facts: Facts, monkeypatch: pytest.MonkeyPatch, gpus: dict[str, Any]) -> None:
    plan = replace(facts.plan, device="cuda")
    before = facts.key(plan)
    absent = {"gpus": [], "driver": None, "cuda_driver": None}
    monkeypatch.setattr("compare.machine.nvml.describe", lambda: absent | gpus)
    assert facts.key(plan) != before


@pytest.mark.parametrize("package", ["compare", "tests"])
def test_a_changed_source_file_is_a_miss(
    facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    source = tmp_path / "sources" / "one.py"
    source.parent.mkdir()
    source.write_text("a = 1\n")
    find = store_keys.find_sources
    monkeypatch.setattr(store_keys, "find_sources", lambda name: [source] if name.startswith(package) else find(name))
    before = facts.key()
    source.write_text("a = 2\n")
    assert facts.key() != before


def test_every_source_of_samestep_and_of_a_backend_counts() -> None:
    found = {str(path.relative_to(plans.ROOT)) for path in store_keys.find_sources("compare")}
    assert {"compare/agreement/gates.py", "compare/results/result.schema.json"} <= found
    found = {str(path.relative_to(plans.ROOT)) for path in store_keys.find_sources("tests.fakebackend.other")}
    assert "tests/fakebackend/session.py" in found
    assert store_keys.find_sources("no_such_backend") == []
