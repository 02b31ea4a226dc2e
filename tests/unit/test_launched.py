"""What launchers tell, the batch script, and what is refused before machines have come together."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compare.interface import Refused
from compare.machines import launched, slurm
from compare.machines.launched import Here
from tests.fakebackend import plans

TOKEN = "a-secret-of-tests"
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "gpu7", "MASTER_PORT": "29500"}
# As slurmd 22.05 sets them for `srun -N2 --ntasks-per-node=1`, on the second node.
SRUN = {
    "SLURM_JOB_ID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


def with_token(variables: dict[str, str], **changes: str) -> dict[str, str]:
    return {"SAMESTEP_TOKEN": TOKEN, **variables, **changes}


def test_torchrun_and_srun_tell_which_machine_this_is():
    assert launched.here(with_token(TORCHRUN)) == Here(1, 2, "torchrun", "gpu7", 29501, TOKEN)
    assert launched.here(with_token(SRUN)) == Here(1, 2, "srun", "node1", 61442, TOKEN)
    assert launched.here(with_token(SRUN | TORCHRUN)) == launched.here(with_token(TORCHRUN))  # torchrun under srun
    chosen = launched.here(with_token(SRUN, SAMESTEP_PORT="4000"))
    assert chosen is not None
    assert chosen.port == 4000
    assert TOKEN not in repr(chosen)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"},
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"},
        {"SLURM_JOB_ID": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},  # a batch script by itself
    ],
)
def test_one_process_is_one_machine(variables: dict[str, str]):
    assert launched.here(variables) is None


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (with_token(TORCHRUN, LOCAL_WORLD_SIZE="4"), "4 samestep processes .* allowed: torchrun --nproc-per-node 1"),
        (with_token(SRUN, SLURM_STEP_NUM_TASKS="4"), "4 samestep processes on 2 nodes; allowed: --ntasks-per-node=1"),
        (TORCHRUN, "torchrun started samestep on 2 machines, and SAMESTEP_TOKEN is not set; allowed: the same secret"),
        (with_token(SRUN, SAMESTEP_TOKEN="short"), "SAMESTEP_TOKEN is too short; allowed: .* 16 characters or more"),
        (with_token(TORCHRUN, RANK="2"), "process 2 of 2; allowed: 0 to 1"),
        (with_token(TORCHRUN, RANK="one"), "the variable RANK is 'one'; allowed: a whole number"),
        (with_token(TORCHRUN, MASTER_ADDR=""), "RANK and WORLD_SIZE are set, MASTER_ADDR is not"),
        (with_token(TORCHRUN, MASTER_PORT="65535"), "the variable MASTER_PORT is '65535'"),
        (with_token(SRUN, SAMESTEP_PORT="0"), "the variable SAMESTEP_PORT is '0'"),
        (with_token(SRUN, SLURM_STEP_NODELIST=""), "SLURM_STEP_NODELIST '' names no node"),
    ],
)
def test_what_no_launcher_should_say_is_refused_by_name(variables: dict[str, str], said: str):
    with pytest.raises(Refused, match=said):
        launched.here(variables)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node[1-2]", "node1"),
        ("gpu[07-12,30],login1", "gpu07"),
        ("login1,gpu[07-12]", "login1"),
        ("r[2,4]c[03-05]-ib", "r2c03-ib"),
    ],
)
def test_the_first_node_of_slurm_s_lists(nodes: str, first: str):
    assert launched.first_host(nodes) == first


def program(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if name not in TORCHRUN}
    return subprocess.run(
        [sys.executable, "-m", "compare", *arguments],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(plans.ROOT)} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_other_commands_are_refused_on_several_machines(tmp_path: Path):
    done = program(tmp_path, "workloads", **with_token(TORCHRUN))
    assert done.returncode == 2
    assert done.stderr == (
        "samestep: torchrun started samestep workloads on 2 machines; allowed on several: compare, agree\n"
    )


def launch(folder: Path, *arguments: str, path: str = "/usr/bin:/bin") -> "subprocess.CompletedProcess[str]":
    return program(folder, "launch", *arguments, PATH=path)


def test_the_batch_script_starts_one_samestep_a_node_with_a_secret_of_its_own(tmp_path: Path):
    """It is run as Slurm would run it, with an srun that starts its command on one node after the other."""
    srun = tmp_path / "srun"
    srun.write_text(
        '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do echo "$1"; shift; done\n'
        'for node in 0 1; do echo "$SAMESTEP_TOKEN"; for each; do echo "<$each>"; done; done\n'
    )
    srun.chmod(0o755)
    options = ("--slurm", "--nodes", "2", "--gpus-per-node", "4", "--sbatch", "--partition=gpu", "--dry-run")
    done = launch(tmp_path, *options, "--out", "an out", "--", "compare", "torch:stock+ddp", "jax", "--devices", "8")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "an out").exists()
    directives = [line for line in done.stdout.splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        "#SBATCH --job-name=samestep",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --gpus-per-node=4",
        f"#SBATCH --chdir={tmp_path}",
        f'#SBATCH "--output={tmp_path}/an out/slurm-%j.log"',
        "#SBATCH --partition=gpu",
    ]
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CPUS_PER_TASK": "16"}
    ran = subprocess.run(
        ["bash"], input=done.stdout, env=variables, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--cpus-per-task=16"} <= set(ran)
    arguments = ["-m", "compare", "compare", "torch:stock+ddp", "jax", "--devices", "8", "--out", f"{tmp_path}/an out"]
    command = [f"<{each}>" for each in (sys.executable, *arguments)]
    one, other = ran[-2 * len(command) - 2 : -len(command) - 1], ran[-len(command) - 1 :]
    assert one == other
    assert one[1:] == command
    assert len(one[0]) == 64
    assert int(one[0], 16)


def test_a_job_is_submitted_and_what_sbatch_says_is_passed_on(tmp_path: Path):
    sbatch, path = tmp_path / "sbatch", f"{tmp_path}:/usr/bin:/bin"
    command = ("--slurm", "--out", "out", "--", "agree", "--parallel", "ddp,sharded", "--devices", "2")
    sbatch.write_text('#!/bin/sh\ngrep -q "^exec srun" "$1" && echo "Submitted batch job 17"\n')
    sbatch.chmod(0o755)
    done = launch(tmp_path, *command, path=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Submitted batch job 17: {tmp_path}/out/samestep.sbatch")
    sbatch.write_text('#!/bin/sh\necho "sbatch: error: invalid partition specified: gpu" >&2\nexit 1\n')
    done = launch(tmp_path, *command, path=path)
    assert done.returncode == 2
    assert "did not take" in done.stderr
    assert "invalid partition specified: gpu" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "compare"], "needs to know the launcher; allowed: --slurm"),
        (["--slurm", "--", "scale"], "samestep launch scale is not allowed; allowed: compare or agree"),
        (["--slurm", "--nodes", "1", "--", "compare"], "--nodes 1 is not allowed; allowed: 2 to 4096"),
        (["--slurm", "--gpus-per-node", "-1", "--", "agree"], "--gpus-per-node -1 is not allowed; allowed: 0 to 64"),
        (["--slurm", "--sbatch", "gpu", "--", "agree"], "--sbatch 'gpu' is not allowed; allowed: an option of sbatch"),
        (
            ["--slurm", "--", "agree", "torch:ddp", "jax", "--devices", "2"],
            "sbatch is not installed here, so .* was written and not submitted",
        ),
    ],
)
def test_launches_that_cannot_be_are_refused(tmp_path: Path, arguments: list[str], said: str):
    done = launch(tmp_path, *arguments, path=str(tmp_path))
    assert done.returncode == 2
    assert re.search(said, done.stderr), done.stderr


SPREAD = ["torch:stock+ddp", "jax:stock+sharded"]


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        (
            [],
            ["compare", *SPREAD],
            "--devices 1 on 2 nodes is not allowed; allowed: equally many on each, such as --devices 2",
        ),
        (
            ["--gpus-per-node", "4"],
            ["compare", *SPREAD, "--devices", "3"],
            "--devices 3 on 2 nodes .* such as --devices 8",
        ),
        (
            ["--gpus-per-node", "1"],
            ["compare", *SPREAD, "--devices", "16"],
            "--devices 16, 8 on each of 2 nodes, is not allowed with --gpus-per-node 1; allowed: up to --devices 2",
        ),
        (
            ["--nodes", "3"],
            ["agree", *SPREAD, "--device", "cpu", "--devices", "195"],
            "65 on each of 3 nodes, is not allowed with --device cpu; allowed: up to --devices 192",
        ),
        ([], ["compare", *SPREAD, "--nonsense"], "(?i)no such option:? '?--nonsense"),
        ([], ["compare", *SPREAD, "--devices", "two"], "--devices 'two' is not allowed; allowed: a whole number"),
        ([], ["agree", *SPREAD, "--rounds", "5"], "(?i)no such option:? '?--rounds"),
        (
            [],
            ["compare", "--devices", "2"],
            "--devices 2: no contender says how it uses several; allowed: --parallel WAY",
        ),
        ([], ["compare", "tensorflow", "jax", "--devices", "2"], "unknown contender 'tensorflow'; allowed: BACKEND"),
        (
            [],
            ["compare", "torch:ddp", "jax:fast", "--devices", "2"],
            "unknown tuning or knob 'fast' in jax:fast; allowed",
        ),
        (
            ["--gpus-per-node", "1"],
            ["compare", *SPREAD, "--devices", "2", "--device", "tpu"],
            "unknown device 'tpu'; allowed: auto, cpu, cuda",
        ),
        *(
            ([], ["compare", *SPREAD, "--devices", "2", *options], said)
            for options, said in (
                (["--workload", "nope"], "unknown workload 'nope'; allowed: "),
                (["--precision", "half"], "unknown precision 'half'; allowed: float64, "),
                (["--batch-size", "63"], "--batch-size 63 with --devices 2 is not allowed; allowed: equal parts"),
                (["--batch-norm", "local"], "--batch-norm local: jax:stock.sharded is a program over the whole batch"),
                (["--batch-norm", "other"], "--batch-norm other is not allowed; allowed: sync, local"),
                (["--accumulate", "2"], "--accumulate 2 with torch:stock.ddp is not allowed; allowed: 1"),
                (["--jax", "a.py:model", "--torch", "b.py:model"], "ddp: models of your own train on one device"),
            )
        ),
    ],
)
def test_a_command_that_must_fail_on_its_nodes_is_refused(
    tmp_path: Path, options: list[str], command: list[str], said: str
):
    done = launch(tmp_path, "--slurm", "--dry-run", *options, "--", *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(said, " ".join(done.stderr.replace("│", " ").split())), done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (["--gpus-per-node", "8", "--nodes", "4"], ["compare", "torch:tuned", "jax:tuned+sharded", "--devices", "32"]),
        ([], ["agree", "--parallel", "ddp,pmap", "--devices", "16"]),  # how many GPUs there are is not known
        (["--gpus-per-node", "1"], ["compare", *SPREAD, "--devices", "128", "--device", "cpu", "--batch-size", "256"]),
        ([], ["compare", "torch:ddp", "jax:pmap+overlap-reduction", "--devices", "2"]),  # which a GPU has
    ],
)
def test_a_command_that_its_nodes_may_carry_out_is_taken(tmp_path: Path, options: list[str], command: list[str]):
    done = launch(tmp_path, "--slurm", "--dry-run", *options, "--", *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"-m compare {' '.join(command)} --out" in done.stdout


def test_options_of_sbatch_cannot_bring_in_lines_of_their_own():
    job = slurm.Job(["agree"], 2, 0, ["--comment=a\nrm -r x"], Path("log"), Path())
    with pytest.raises(Refused, match="is not allowed; allowed: an option of sbatch"):
        slurm.checked(job)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--nodes=9", "--nodes of samestep launch"),
        ("--gpus-per-node=1", "--gpus-per-node of samestep launch"),
        ("--output=log", "--out of samestep launch"),
        ("--ntasks-per-node=2", "options that samestep does not write itself"),
        ("--exclusive=user", "options that samestep does not write itself"),
        ("--chdir=/", "options that samestep does not write itself"),
    ],
)
def test_options_of_sbatch_that_the_job_has_are_refused(option: str, instead: str):
    job = slurm.Job(["agree"], 2, 0, ["--job-name=mine", option], Path("log"), Path())
    with pytest.raises(Refused) as refusal:
        slurm.checked(job)
    assert str(refusal.value) == f"--sbatch {option} is not allowed: the job says so itself; allowed: {instead}"
