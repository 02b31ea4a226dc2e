"""Run a campaign as a job array: each cell is a job, which Slurm starts where there is room.

submitit writes the batch script, submits it, and asks Slurm for the state of each job. Its executor `local` starts the
same jobs here. A job runs samestep for its cell alone, and puts the result into the store, which all machines share.
"""

import glob
import importlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compare.base.interface import Refused
from compare.cluster import slurm
from compare.cluster.cluster import Cluster
from compare.studies import estimate, gpu_workers
from compare.studies.cell_store import FAILED, PENDING, CellState
from compare.studies.cells import Cell, find_place_here
from compare.studies.study import OnChange, Study

SLURM, LOCAL = EXECUTORS = ("slurm", "local")

_MOST_JOBS = 1000
"""Jobs of one array. Slurm takes 1,001 unless it is told otherwise (MaxArraySize)."""
_LEAST_MINUTES = 60
_SAFETY = 4
"""The time limit of a job is the longest cell's estimate times this."""
_POLL_SECONDS = 5.0
_SETTLE_SECONDS = 30.0
"""How long the store's files may take to appear on this machine after a job has ended."""
_SET_BY_ARRAY = {
    **dict.fromkeys(("--array", "--output", "--error", "--open-mode", "--job-name", "--signal"), "none of these"),
    "--nodes": "devices in the campaign file: each cell has one machine",
    "--ntasks": "devices in the campaign file: each cell has one process",
    "--ntasks-per-node": "devices in the campaign file: each cell has one process",
    "--gpus-per-node": "devices in the campaign file: each job gets as many GPUs as its cell has devices",
}


class BatchMachine(Cluster):
    """A machine of the queue. Nothing is known about it here. It has the device that a cell names."""

    def device(self, name: str) -> str:
        """Return a device that is named.

        Raises:
            Refused: the device is `auto`.
        """
        if name == "auto":
            raise Refused("device = 'auto' with --executor slurm is not allowed; allowed: 'cpu' or 'cuda' in the file")
        return name


@dataclass(frozen=True)
class JobArray:
    """How cells become jobs.

    Attributes:
        executor: one of `EXECUTORS`.
        options: options of sbatch, such as `--partition=gpu`.
        folder: gets the scripts and logs of jobs. All machines see it.
        arguments: the command line that runs the campaign, after the program's name. A job adds its cell.
    """

    executor: str
    options: Sequence[str]
    folder: Path
    arguments: Sequence[str]

    def check(self) -> None:
        """Check what can be checked before a job starts.

        Raises:
            Refused: for an unknown executor or option, without submitit, or without Slurm.
        """
        if self.executor not in EXECUTORS:
            raise Refused(f"--executor {self.executor!r} is not allowed; allowed: {', '.join(EXECUTORS)}")
        slurm.check_options(self.options, _SET_BY_ARRAY)
        if self.options and self.executor == LOCAL:
            raise Refused(f"--sbatch {self.options[0]} needs --executor slurm")
        try:
            importlib.import_module("submitit")
        except ImportError:
            message = "--executor needs submitit; install it with: pip install 'samestep[slurm]'"
            raise Refused(message) from None
        if self.executor == SLURM and not (shutil.which("sbatch") and shutil.which("srun")):
            raise Refused(
                "--executor slurm: sbatch or srun is not installed here; allowed: a machine from which Slurm takes "
                "jobs, or --executor local"
            )

    def prepare(self, cell: Cell) -> Cell:
        """Return a cell that is planned for the machines of the queue and not for this one."""
        return replace(cell, cluster=BatchMachine()) if self.executor == SLURM else cell

    def run(self, study: Study, on_change: OnChange) -> None:
        """Run every pending cell as a job, and wait for all. `on_change` gets each cell that a job finishes.

        A cell whose job ends without a result has failed. It is not kept, so that the same command runs it again.

        Raises:
            Refused: Slurm does not take the jobs.
            KeyboardInterrupt, SystemExit: an interruption, which cancels the jobs.
        """
        waiting = [state for state in study.find_states() if state.status == PENDING]
        jobs = dict[str, Any]()
        try:
            for start in range(0, len(waiting), _MOST_JOBS):
                jobs |= self._submit(waiting[start : start + _MOST_JOBS])
            self._wait(study, jobs, on_change)
        except BaseException:
            for job in jobs.values():
                job.cancel(check=False)
            raise

    def _submit(self, states: Sequence[CellState]) -> dict[str, Any]:
        submitit: Any = importlib.import_module("submitit")
        helpers: Any = importlib.import_module("submitit.helpers")
        # submitit's own processes must not find modules in the current folder, such as a user's queue.py.
        with helpers.environment_variables(PYTHONSAFEPATH="1"):
            executor = submitit.AutoExecutor(folder=self.folder / "%j", cluster=self.executor)
            executor.update_parameters(**self._choose_parameters(states))
            try:
                with executor.batch():
                    jobs = [
                        executor.submit(helpers.CommandFunction(self._make_command(state.cell))) for state in states
                    ]
            except submitit.core.utils.FailedJobError as error:
                raise Refused(f"sbatch did not take the jobs: {error}") from None
        return {state.cell.name: job for state, job in zip(states, jobs, strict=True)}

    def _make_command(self, cell: Cell) -> list[str]:
        return gpu_workers.make_command(gpu_workers.ARRAY, [*self.arguments, "--only", glob.escape(cell.name)])

    def _choose_parameters(self, states: Sequence[CellState]) -> dict[str, Any]:
        devices = [state.cell.settings.devices for state in states if state.cell.device == "cuda"]
        places = {state.cell.device: find_place_here(state.cell.device) for state in states}
        longest = max(estimate.estimate([state], places).high for state in states) / 60
        parameters: dict[str, Any] = {
            "name": "samestep",
            "timeout_min": max(_LEAST_MINUTES, round(_SAFETY * longest)),
        }
        if devices:
            parameters["gpus_per_node"] = max(devices)
        if self.executor == SLURM:
            pairs = [option.removeprefix("--").partition("=") for option in self.options]
            own = {name: value if equals else True for name, equals, value in pairs}
            # What is timed shares its machine with nobody.
            parameters["slurm_additional_parameters"] = {"exclusive": True} | own
        return parameters

    def _wait(self, study: Study, jobs: dict[str, Any], on_change: OnChange) -> None:
        ended, everything = dict[str, float](), list(jobs.values())
        while jobs:
            for state in study.find_states():
                if state.status != PENDING and jobs.pop(state.cell.name, None) is not None:
                    on_change(replace(state, kept=False))
            for name, job in list(jobs.items()):
                if job.done():
                    ended.setdefault(name, time.monotonic())
                if name in ended and time.monotonic() - ended[name] > _SETTLE_SECONDS:
                    cell = next(cell for cell in study.cells if cell.name == name)
                    del jobs[name]
                    on_change(CellState(cell, FAILED, _explain(job)))
            if jobs:
                time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not all(job.done() for job in everything) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)  # a result appears shortly before its job ends


def _explain(job: Any) -> str:
    """Return why a job ended without a result: the last line that it wrote, and where its log is."""
    path = Path(job.paths.stderr)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        lines = [f"there is no log ({error.strerror})"]
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
    return f"job {job.job_id} ended without a result ({job.state}): {last[:300]}; log: {path}"
