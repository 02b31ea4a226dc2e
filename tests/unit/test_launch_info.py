"""What launchers tell, and what is refused before machines have come together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compare.base.interface import Refused
from compare.cluster import launch_info
from compare.cluster.launch_info import LaunchInfo
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
    assert launch_info.read(with_token(TORCHRUN)) == LaunchInfo(1, 2, "torchrun", "gpu7", 29501, TOKEN)
    assert launch_info.read(with_token(SRUN)) == LaunchInfo(1, 2, "srun", "node1", 61442, TOKEN)
    assert launch_info.read(with_token(SRUN, SLURM_STEP_ID="3")) == LaunchInfo(1, 2, "srun", "node1", 61445, TOKEN)
    assert launch_info.read(with_token(SRUN | TORCHRUN)) == launch_info.read(
        with_token(TORCHRUN)
    )  # torchrun under srun
    chosen = launch_info.read(with_token(SRUN, SAMESTEP_PORT="4000"))
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
    assert launch_info.read(variables) is None


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
        launch_info.read(variables)


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
    assert launch_info.parse_first_host(nodes) == first


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
