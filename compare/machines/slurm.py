"""The batch script that runs one comparison over the nodes of a Slurm allocation."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.interface import Refused
from compare.machines import splitting
from compare.machines.launched import TOKEN

OVER_MACHINES = ("compare", "agree")
"""The commands that train over several machines."""
_SUBMIT_SECONDS = 60
_SET_BY = {
    "--nodes": "--nodes of samestep launch",
    "--gpus-per-node": "--gpus-per-node of samestep launch",
    "--output": "--out of samestep launch",
    **dict.fromkeys(
        ("--ntasks", "--ntasks-per-node", "--exclusive", "--chdir"), "options that samestep does not write itself"
    ),
}
"""Options of sbatch that a job has already, and what is allowed in their place."""


@dataclass(frozen=True)
class Job:
    """What Slurm is asked for, and the samestep command that runs there.

    Attributes:
        arguments: of samestep, the command first.
        nodes: how many machines.
        gpus: on each, 0 for none.
        options: further options of sbatch, as `--partition=gpu`.
        log: the file that Slurm writes the output to; `%j` stands for the job's number.
        directory: where samestep runs.
    """

    arguments: Sequence[str]
    nodes: int
    gpus: int
    options: Sequence[str]
    log: Path
    directory: Path

    def script(self) -> str:
        """Return the batch script: one samestep on each node, which starts what is needed there itself.

        Slurm must not end the others when one ends in failure: the first still has results to write, and ends them.
        """
        asked = [
            "--job-name=samestep",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            "--exclusive",  # what is timed shares its machine with nobody
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            f"--chdir={self.directory}",
            f"--output={self.log}",
            *self.options,
        ]
        step = f"--nodes={self.nodes} --ntasks={self.nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0"
        # Every core of the job is samestep's: srun neither takes over how many there are, nor leaves tasks unbound.
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
                f"    {shlex.join([sys.executable, '-m', 'compare', *self.arguments])}",
                "",
            ]
        )


def checked(job: Job) -> Job:
    """Return a job that can be asked for.

    Raises:
        Refused: another command, fewer than two nodes, or what is no option of sbatch or one that the job has already.
    """
    command = job.arguments[0] if job.arguments else ""
    if command not in OVER_MACHINES:
        raise Refused(
            f"samestep launch {command or 'without a command'} is not allowed; allowed: {' or '.join(OVER_MACHINES)} "
            "and its arguments, after --"
        )
    if not 2 <= job.nodes <= 4096:
        raise Refused(f"--nodes {job.nodes} is not allowed; allowed: 2 to 4096; one machine needs no launcher")
    if not 0 <= job.gpus <= 64:
        raise Refused(f"--gpus-per-node {job.gpus} is not allowed; allowed: 0 to 64")
    for option in job.options:
        if not re.fullmatch(r"--[a-z][a-z-]*(=[^\n]+)?", option):
            raise Refused(f"--sbatch {option!r} is not allowed; allowed: an option of sbatch, as --partition=gpu")
        if instead := _SET_BY.get(option.partition("=")[0]):
            raise Refused(f"--sbatch {option} is not allowed: the job says so itself; allowed: {instead}")
    return job


def check_devices(job: Job, devices: int, device: str) -> None:
    """Check that a job's nodes can have the devices that its command splits batches over, on `cpu`, `cuda` or `auto`.

    How many GPUs a node has is known where the job asks for them.

    Raises:
        Refused: not equally many on each node, or more than there will be.
    """
    each, rest = divmod(devices, job.nodes)
    known = device != "cpu" and job.gpus
    if rest or each < 1:
        such = job.nodes * (job.gpus if known else 1)
        raise Refused(
            f"--devices {devices} on {job.nodes} nodes is not allowed; allowed: equally many on each, such as "
            f"--devices {such}"
        )
    most = splitting.MOST_CPU_DEVICES if device == "cpu" else job.gpus
    if most and each > most:
        there = "--device cpu" if device == "cpu" else f"--gpus-per-node {most}"
        raise Refused(
            f"--devices {devices}, {each} on each of {job.nodes} nodes, is not allowed with {there}; allowed: up to "
            f"--devices {most * job.nodes}"
        )


def submitted(script: Path) -> str:
    """Submit a batch script; return what sbatch says, as `Submitted batch job 17`.

    Raises:
        Refused: sbatch is not there, or does not take the script.
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


def _directive(option: str) -> str:
    """Return an option as a line #SBATCH has it: quoted where it has spaces (slurm.schedmd.com/sbatch.html)."""
    return option if re.fullmatch(r"[\w%+,./:=@-]+", option) else '"' + option.replace('"', '\\"') + '"'
