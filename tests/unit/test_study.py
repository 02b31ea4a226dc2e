"""Studies: lists of cells with one store, one way to resume, and their states."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.execution import execute
from compare.results import result_file
from compare.results.model import Environment
from compare.settings.options import Settings
from compare.store.entries import Store
from compare.studies import cells as study_cells
from compare.studies import study as studies
from compare.studies.cell_store import CellState, CellStore
from compare.studies.cells import Cell, Place
from compare.studies.study import Study
from tests.fakebackend import plans

pytestmark = pytest.mark.slow

SETTINGS = Settings(contenders=("fake", "other"), device="cpu", rounds=3, epochs=1, batch_size=8, deadline=60.0)


def make_cell(name: str = "one", **changes: Any) -> Cell:
    return Cell(name, replace(SETTINGS, **changes))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellStore:
    (tmp_path / "logs").mkdir()
    plans.register(monkeypatch, tmp_path / "logs", {"other": {"step_seconds": 8e-3}})
    monkeypatch.chdir(tmp_path)
    return CellStore(tmp_path / "store")


def run(store: CellStore, *cells: Cell, **options: Any) -> list[CellState]:
    return Study(cells, store, ["samestep", "test"], **options).run(lambda _: None)


_FINISHED: list[CellState] = []


def finish(store: CellStore) -> CellState:
    """Keep a finished cell in the store, which one run has made for all tests of this file."""
    if not _FINISHED:
        _FINISHED.extend(run(store, make_cell()))
    return store.add(_FINISHED[0])


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"rounds": 4},
        {"rounds": None},
        {"precision": "float64"},
        {"batch_size": 4},
        {"contenders": ("other", "fake")},
        {"workload": "cifar-cnn"},
        {"margin": 0.02},
        {"energy": False},
        {"epochs": 2},
    ],
)
def test_every_setting_that_decides_a_result_decides_the_key(store: CellStore, change: dict[str, Any]) -> None:
    changed = make_cell(**change)
    assert changed.key != make_cell().key
    assert changed.key == make_cell("another name", **change).key


def test_folders_and_patience_do_not_decide_the_key(store: CellStore, tmp_path: Path) -> None:
    assert make_cell(out=tmp_path / "elsewhere", deadline=5.0, store=tmp_path).key == make_cell().key


def test_a_variable_of_a_framework_decides_the_key_and_the_choice_of_a_gpu_does_not(
    store: CellStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_cell().key
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert make_cell().key == first
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert make_cell().key != first


def test_the_source_of_a_users_pair_and_of_what_it_imports_decide_the_key(
    store: CellStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compare.settings.pair_spec import make_workload

    monkeypatch.setattr("compare.machine.environment.is_installed", lambda package: True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "layers.py").write_text("WIDTH = 8\n")
    for side in ("flax", "torch"):
        (tmp_path / "mine" / f"my_{side}.py").write_text("import layers\n\ndef model():\n    pass\n")

    def key() -> str:
        pair = make_workload("mine/my_flax.py:model", "mine/my_torch.py:model", image="8x8x1", classes=10)
        return make_cell(workload=pair, contenders=("torch", "jax")).key

    first = key()
    assert key() == first
    (tmp_path / "mine" / "layers.py").write_text("WIDTH = 16\n")
    second = key()
    assert second != first
    (tmp_path / "mine" / "my_flax.py").write_text("import layers\n\ndef model():\n    return None\n")
    assert key() not in (first, second)
    (tmp_path / "mine" / "unrelated.py").write_text("x = 1\n")
    (tmp_path / "mine" / "my_torch.py").unlink()
    with pytest.raises(Refused, match=r"there is no file mine/my_torch\.py"):
        key()


def test_a_finished_cell_is_kept_and_does_not_run_again(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = run(store, make_cell())
    assert (first.status, first.reason, first.kept) == ("done", None, False)
    assert first.result is not None
    assert first.result.comparisons[0].verdict == "SLOWER"

    monkeypatch.setattr(execute, "execute_until_interrupted", None)  # nothing runs
    (second,) = run(CellStore(store.root), make_cell("renamed"))
    assert second.kept
    assert (second.data, second.place, second.seconds) == (first.data, first.place, first.seconds)
    store.remove(make_cell())
    assert Study([make_cell()], store, []).find_states() == [CellState(make_cell())]


def test_states_tell_what_happened_and_one_cell_does_not_stop_the_others(
    store: CellStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = {"third": {"fault": "raise", "at": "start"}, "other": {"launch_noise": 0.2}}
    plans.register(monkeypatch, tmp_path / "logs", script)
    cells = (
        make_cell("impossible", precision="tf32"),
        make_cell("broken", contenders=("fake", "third")),
        make_cell("noisy", margin=0.5),
    )
    impossible, broken, noisy = run(store, *cells)
    assert (impossible.status, impossible.is_finished) == ("refused", False)
    assert "--precision tf32 needs --device cuda" in (impossible.reason or "")
    assert broken.status == "failed"
    assert broken.reason is not None
    assert broken.reason.startswith("third: crash, ")
    assert noisy.status == "undecided"
    assert [state.status for state in Study(cells, store, []).find_states()] == ["refused", "failed", "undecided"]


def test_an_interrupted_cell_stays_pending(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = execute.execute_until_interrupted

    def interrupt(*arguments: Any, **options: Any) -> Any:
        return (*real(*arguments, **options)[:2], KeyboardInterrupt())

    monkeypatch.setattr(execute, "execute_until_interrupted", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(store, make_cell())
    assert store.find(make_cell()) is None


def test_a_cell_of_another_machine_counts_only_where_the_study_takes_it(
    store: CellStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = finish(store)
    elsewhere = Place("Another CPU", {"cpu": "Another CPU", "cores": 64})
    monkeypatch.setattr("compare.studies.cell_store.find_place_here", lambda device: elsewhere)
    (kept,) = Study([make_cell()], store, []).find_states()
    assert (kept.status, kept.place) == ("done", first.place)
    assert json.loads(json.dumps(kept.cell.facts)) == kept.cell.facts
    assert Study([make_cell()], store, [], anywhere=False).find_states()[0].status == "pending"


def test_places_tell_machines_apart() -> None:
    facts = {
        "cpu": {"model": "A CPU", "usable_cores": 2},
        "nvidia": {"gpus": [{"name": "H200"}], "driver": "580"},
    }

    def find_place(facts: Any, device: str) -> study_cells.Place:
        return study_cells.find_place(Environment(extra=facts), device)

    cpu, gpu = find_place(facts, "cpu"), find_place(facts, "cuda")
    assert (cpu.text, gpu.text) == ("A CPU, 2 cores", "H200, driver 580")
    assert find_place(facts | {"cpu": {"model": "A CPU", "usable_cores": 4}}, "cpu") != cpu
    assert find_place({}, "cpu").text == "unknown device, unknown cores"


def test_a_broken_entry_is_not_a_finished_cell(store: CellStore) -> None:
    finish(store)
    (entry,) = Store(store.root).entries()
    (entry.folder / "result.json.gz").write_bytes(b"broken")
    assert store.find(make_cell()) is None
    assert finish(store) == store.find(make_cell())


def _hold(root: Path, key: str, held: Any, release: Any) -> None:
    with CellStore(root).lock(f"cell-{key}"):
        held.set()
        release.wait(60)


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, which another test of this process may have imported
def test_a_cell_that_another_process_runs_is_left_to_it_and_the_others_run_first(
    store: CellStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    finish(store)
    cells = make_cell("first", seed=1), make_cell("second")
    process = context.Process(target=_hold, args=(store.root, cells[0].key, held, release))
    process.start()
    assert held.wait(60)
    order = list[str]()

    def note(state: CellState) -> None:
        order.append(state.cell.name)
        release.set()

    monkeypatch.setattr(studies, "_WAIT_SECONDS", 0.05)
    states = Study(cells, store, []).run(note)
    process.join()
    assert order == ["second", "first"]
    assert [state.cell.name for state in states] == ["first", "second"]


def test_the_result_of_a_kept_cell_is_written_again_as_it_was(store: CellStore, tmp_path: Path) -> None:
    state = finish(store)
    path = studies.write_result(state, tmp_path / "again")
    assert path is not None
    assert result_file.read(path) == state.result
    assert json.loads(path.read_bytes()) == json.loads(state.data or b"")
    assert studies.write_result(CellState(make_cell()), tmp_path / "none") is None


def test_a_cell_whose_rounds_do_not_count_is_timed_again(
    store: CellStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(out=tmp_path / "cell")
    finish(store)
    state = studies.run_alone(cell, store, [], "")
    assert state.result is not None
    assert result_file.read(tmp_path / "cell" / "result.json") == state.result
    assert store.find(cell) is not None
    monkeypatch.setattr(studies.verdicts, "LEAST_ROUNDS", state.result.spec.rounds + 1)
    studies.run_alone(cell, store, [], "")
    assert store.find(cell) is None
