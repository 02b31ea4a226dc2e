"""Cells as jobs of an array: submitit submits them, and their states come from the store."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.settings.options import Settings
from compare.studies import gpu_workers, job_array
from compare.studies.cell_store import CellState
from compare.studies.cells import Cell
from compare.studies.job_array import JobArray

WORK = """
import os, sys
name = sys.argv[sys.argv.index("--only") + 1]
open(name.replace("[*]", "*"), "w").write(os.environ["SAMESTEP_CAMPAIGN_WORKER"])
if name == "broken":
    sys.exit("no space left on device")
"""


class Study:
    """Stands for a study. A cell is done when its job has written a file of its name, unless it is `broken`."""

    def __init__(self, folder: Path, *cells: Cell) -> None:
        self.cells, self._folder = cells, folder

    def find_states(self) -> list[CellState]:
        return [CellState(cell, "done" if self._has_run(cell.name) else "pending") for cell in self.cells]

    def _has_run(self, name: str) -> bool:
        path = self._folder / name
        return name != "broken" and path.is_file() and path.read_text() == gpu_workers.ARRAY


def make_cells(*names: str, **changes: Any) -> list[Cell]:
    return [Cell(name, Settings(**{"device": "cpu", **changes})) for name in names]


def test_every_cell_is_a_job_and_one_without_a_result_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_command = gpu_workers.make_command

    def make_short_command(parent: str, arguments: list[str]) -> list[str]:
        whole = make_command(parent, arguments)
        head = whole[3].split("; sys.path")[0]
        return [sys.executable, "-c", f"{head}; {WORK}", *arguments]

    monkeypatch.setattr(gpu_workers, "make_command", make_short_command)
    monkeypatch.setattr(job_array, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(job_array, "_SETTLE_SECONDS", 2.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("raise SystemExit('the queue.py of a user')")
    study: Any = Study(tmp_path, *make_cells("a, b*", "broken"))
    seen = dict[str, CellState]()
    array = JobArray("local", [], tmp_path / "jobs", ["campaign", "c.toml"])
    array.check()
    array.run(study, lambda state: seen.update({state.cell.name: state}))
    assert seen["a, b*"].status == "done"
    assert seen["broken"].status == "failed"
    assert "ended without a result" in (seen["broken"].reason or "")
    assert "no space left on device" in (seen["broken"].reason or "")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an sbatch into the path that keeps its script."""
    path = tmp_path / "script"
    for name, text in {"sbatch": f'cp "$1" {path}\necho Submitted batch job 7', "srun": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return path


def test_slurm_gets_one_array_with_the_options_of_a_user(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobArray, "_wait", lambda *_: None)
    array = JobArray("slurm", ["--partition=gpu", "--time=2:00:00", "--reservation=x y"], tmp_path / "jobs", [])
    array.check()
    cells = [array.prepare(cell) for cell in make_cells("a", "b", "c", device="cuda", workload="cifar-cnn")]
    array.run(Study(tmp_path, *cells), lambda _: None)  # pyright: ignore[reportArgumentType]
    lines = set(script.read_text().splitlines())
    assert {"#SBATCH --array=0-2%3", "#SBATCH --partition=gpu", "#SBATCH --time=2:00:00"} <= lines
    assert {"#SBATCH --reservation='x y'", "#SBATCH --gpus-per-node=1", "#SBATCH --exclusive"} <= lines


def test_a_cell_is_planned_for_a_device_that_is_not_here(tmp_path: Path) -> None:
    array = JobArray("slurm", [], tmp_path, [])
    (cell,) = make_cells("a", device="cuda")
    assert array.prepare(cell).device == "cuda"
    (unknown,) = make_cells("a", device="auto")
    with pytest.raises(Refused, match="device = 'auto' with --executor slurm is not allowed; allowed: 'cpu' or 'cuda'"):
        _ = array.prepare(unknown).device


@pytest.mark.parametrize(
    ("executor", "options", "said"),
    [
        ("pbs", [], "--executor 'pbs' is not allowed; allowed: slurm, local"),
        ("local", ["--partition=gpu"], "--sbatch --partition=gpu needs --executor slurm"),
        ("slurm", ["partition"], "--sbatch 'partition' is not allowed; allowed: an option of sbatch"),
        ("slurm", ["--array=0-3"], "--sbatch --array=0-3 is not allowed: the job says so itself"),
        ("slurm", [], "--executor slurm: sbatch or srun is not installed here"),
    ],
)
def test_a_wrong_request_is_refused_before_a_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, options: list[str], said: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match=said.replace("(", r"\(")):
        JobArray(executor, options, tmp_path, []).check()


def test_without_submitit_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(Refused, match=r"pip install 'samestep\[slurm\]'"):
        JobArray("local", [], tmp_path, []).check()
