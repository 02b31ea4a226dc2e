"""Several GPUs of a machine: each has a process that takes cells which no other has."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compare.machine import nvml
from compare.settings.options import Settings
from compare.studies import gpu_workers
from compare.studies.cell_store import CellState
from compare.studies.cells import Cell


class Listed:
    """Stands for a study. With each look, another cell has finished."""

    def __init__(self, *cells: Cell) -> None:
        self._cells, self._looks = cells, 0

    def find_states(self) -> list[CellState]:
        self._looks += 1
        finished = max(0, self._looks - 2)
        return [CellState(cell, "done" if index < finished else "pending") for index, cell in enumerate(self._cells)]


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "list_visible", lambda: ["0", "1"])
    monkeypatch.setattr(Cell, "device", property(lambda cell: cell.settings.device))
    monkeypatch.setattr(gpu_workers, "_POLL_SECONDS", 0.05)
    monkeypatch.delenv(gpu_workers.WORKER, raising=False)


def cells(count: int, **changes: Any) -> list[Cell]:
    values: dict[str, Any] = {"device": "cuda", **changes}
    return [Cell(str(seed), Settings(seed=seed, **values)) for seed in range(count)]


def test_as_many_processes_as_there_are_gpus_and_cells() -> None:
    assert gpu_workers.count_workers([CellState(cell) for cell in cells(5)]) == 2
    assert gpu_workers.count_workers([CellState(cell) for cell in cells(1)]) == 1
    assert gpu_workers.count_workers([CellState(cell, "done") for cell in cells(5)]) == 1
    assert gpu_workers.count_workers([CellState(cell) for cell in cells(5, device="cpu")]) == 1
    assert gpu_workers.count_workers([CellState(cell) for cell in cells(5, devices=2)]) == 1


def test_a_worker_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu_workers.WORKER, str(os.getpid()))
    assert gpu_workers.is_worker()
    assert gpu_workers.count_workers([CellState(cell) for cell in cells(5)]) == 1


def test_each_process_sees_one_gpu_and_finished_cells_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stand_in").mkdir()
    script = tmp_path / "worker.py"
    script.write_text(
        "import os, sys, time\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['CUDA_VISIBLE_DEVICES'], 'w').write(' '.join(sys.argv[1:]))\n"
        "time.sleep(0.4)\n"
    )
    real = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return real([sys.executable, str(script), *command[4:]], **options)

    monkeypatch.setattr(gpu_workers.subprocess, "Popen", start)
    seen = list[str]()
    study: Any = Listed(*cells(3))
    gpu_workers.run(study, lambda state: seen.append(state.cell.name), 2, ["campaign", "c.toml"])
    assert seen == ["0", "1", "2"]
    assert [(tmp_path / gpu).read_text() for gpu in ("0", "1")] == ["campaign c.toml"] * 2
