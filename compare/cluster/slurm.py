"""Write and submit the batch script that runs one comparison over the nodes of a Slurm allocation."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.base import process_family
from compare.base.interface import Refused
from compare.cluster.launch_info import TOKEN

LOG = "slurm-%j.log"
"""The file of a job's output. Slurm replaces `%j` by the job's number."""
_SUBMIT_SECONDS = 60
_SET_BY = {
    "--nodes": "--nodes of samestep launch",
    "--gpus-per-node": "--gpus-per-node of samestep launch",
    "--output": "--out of samestep launch",
    "--dry-run": "--dry-run of samestep launch",
    **dict.fromkeys(
        ("--ntasks", "--ntasks-per-node", "--exclusive", "--chdir", "--array", "--wrap"),
        "options that samestep does not write itself, of one job",
    ),
}
"""Options of sbatch that a job sets itself, and the allowed alternative."""


@dataclass(frozen=True)
class Job:
    """A request to Slurm.

    Attributes:
        nodes: the number of machines.
        gpus: the number of GPUs on each, or 0.
        options: further options of sbatch, as `--partition=gpu`.
        directory: the folder where samestep runs.
    """

    nodes: int
    gpus: int
    options: Sequence[str]
    directory: Path

    def script(self, arguments: Sequence[str], folder: Path) -> str:
        """Return the batch script. It runs one samestep on each node, which starts all other processes there.

        `arguments` are samestep's, with the command first. `folder` is for the log and must exist when the job starts.
        Slurm must not end the other nodes when one fails, because the first node still has to write results.
        """
        asked = [
            "--job-name=samestep",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            "--exclusive",  # what is timed shares its machine with nobody
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            f"--chdir={self.directory}",
            f"--output={_pattern(folder)}/{LOG}",
            *self.options,
        ]
        step = f"--nodes={self.nodes} --ntasks={self.nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0"
        # samestep uses every core of the job. By default, srun does not pass on their number, and it binds tasks.
        cores = "--cpu-bind=none ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"#SBATCH {_directive(option)}" for option in asked),
                "set -eu",
                "# By this the machines know each other; srun hands it on to all of them.",
                f"{TOKEN}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
                f"export {TOKEN}",
                f"exec srun {step} \\",
                f"    {cores} --export=ALL \\",
                f"    {shlex.join(process_family.make_module_command('compare', *arguments))}",
                "",
            ]
        )


def check(job: Job) -> Job:
    """Return the job, after a check.

    Raises:
        Refused: there are fewer than two nodes, or an option is not one of sbatch, or is one that the job sets itself.
    """
    if not 2 <= job.nodes <= 4096:
        raise Refused(f"--nodes {job.nodes} is not allowed; allowed: 2 to 4096; one machine needs no launcher")
    if not 0 <= job.gpus <= 64:
        raise Refused(f"--gpus-per-node {job.gpus} is not allowed; allowed: 0 to 64")
    check_options(job.options, _SET_BY)
    return job


def check_options(options: Sequence[str], set_by: Mapping[str, str]) -> None:
    """Check options of sbatch. `set_by` has those that a job sets itself, and the allowed alternative.

    Raises:
        Refused: an option is not one of sbatch, or the job sets it itself.
    """
    for option in options:
        if not re.fullmatch(r"--[a-z][a-z-]*(=[^\n]+)?", option):
            raise Refused(f"--sbatch {option!r} is not allowed; allowed: an option of sbatch, as --partition=gpu")
        if instead := set_by.get(option.partition("=")[0]):
            raise Refused(f"--sbatch {option} is not allowed: the job says so itself; allowed: {instead}")


def submit(script: Path) -> str:
    """Submit a batch script and return sbatch's answer, as `Submitted batch job 17`.

    Raises:
        Refused: sbatch is not installed, or does not take the script.
    """
    program = shutil.which("sbatch")
    if program is None:
        raise Refused(
            f"sbatch is not installed here, so {script} was written and not submitted; allowed: a machine from which "
            "Slurm takes jobs, or --dry-run"
        )
    try:
        done = subprocess.run(
            [program, str(script)], capture_output=True, text=True, timeout=_SUBMIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"sbatch {script}: {error}") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "no reason given"
        raise Refused(f"sbatch did not take {script} (exit code {done.returncode}): {said}")
    return done.stdout.strip()


def _pattern(folder: Path) -> str:
    """Return a folder as a file name pattern of sbatch, in which `%` has a meaning.

    Raises:
        Refused: the folder has a backslash, which switches all replacements off.
    """
    if "\\" in str(folder):
        raise Refused(f"--out {str(folder)!r}: Slurm writes no log there; allowed: a folder without a backslash")
    return str(folder).replace("%", "%%")


def _directive(option: str) -> str:
    """Return an option for an #SBATCH line, in quotes if needed (slurm.schedmd.com/sbatch.html).

    Raises:
        Refused: the option has control characters or is not UTF-8.
    """
    if not option.isprintable():
        raise Refused(f"sbatch would not read {option!r}; allowed: without control characters, and in UTF-8")
    if re.fullmatch(r"[\w%+,./:=@-]+", option):
        return option
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
