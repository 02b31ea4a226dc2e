"""Find out which machine of a run this is, from the variables that torchrun and Slurm's srun set."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from compare.base.errors import Refused

TOKEN, PORT = "SAMESTEP_TOKEN", "SAMESTEP_PORT"
SHORTEST_TOKEN = 16
# Above the ports that systems assign. JAX takes its own port from the same range, also by the job's number.
_SLURM_PORTS = range(61440, 65536)


@dataclass(frozen=True)
class LaunchInfo:
    """This machine among the machines of a run.

    Attributes:
        number: the number of this machine, from 0. The first machine runs the comparison, and the others follow it.
        count: the number of machines.
        launcher: the program that started samestep on each machine, for messages.
        address: the name or number of the first machine.
        port: the port where the first machine waits for the others.
        token: the secret by which the machines know each other.
    """

    number: int
    count: int
    launcher: str
    address: str
    port: int
    token: str = field(repr=False)


def read(environment: Mapping[str, str]) -> LaunchInfo | None:
    """Return which machine this is, or None if no launcher has started samestep on several.

    torchrun sets RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (docs.pytorch.org, torchrun). Other
    launchers and users set them for torch too. With Slurm, only a step of srun counts, and not a batch script by itself
    (slurm.schedmd.com/srun.html, output environment variables).

    Raises:
        Refused: a machine has several processes, there is no token, or variables are missing or wrong.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _read_torchrun(environment)
    if "SLURM_STEP_NUM_TASKS" in environment:
        return _read_srun(environment)
    return None


def parse_first_host(nodes: str) -> str:
    """Return the first name of Slurm's compressed list of nodes, as `gpu07` of `gpu[07-12,30],login1`.

    Raises:
        Refused: the list has no name.
    """
    found = re.match(r"(?:[^\[\],]|\[[^\[\]]+\])+", nodes.strip())
    if found is None:
        raise Refused(f"SLURM_STEP_NODELIST {nodes!r} names no node")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", found[0])


def _read_torchrun(environment: Mapping[str, str]) -> LaunchInfo | None:
    count = _read_number(environment, "WORLD_SIZE", 1)
    if count == 1:
        return None
    local = _read_number(environment, "LOCAL_WORLD_SIZE", 1) if "LOCAL_WORLD_SIZE" in environment else 1
    if local != 1:
        raise Refused(
            f"{local} samestep processes were started on this machine (LOCAL_WORLD_SIZE); allowed: torchrun "
            "--nproc-per-node 1: each starts a process for every device itself"
        )
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise Refused(f"RANK and WORLD_SIZE are set, {name} is not; torchrun sets all of them")
    port = _read_number(environment, "MASTER_PORT", 1, 65534) + 1  # torchrun itself listens on the other
    return _make(_read_number(environment, "RANK", 0), count, "torchrun", environment["MASTER_ADDR"], port, environment)


def _read_srun(environment: Mapping[str, str]) -> LaunchInfo | None:
    count = _read_number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if count == 1:
        return None
    nodes = _read_number(environment, "SLURM_STEP_NUM_NODES", 1)
    if nodes != count:
        raise Refused(
            f"srun started {count} samestep processes on {nodes} nodes; allowed: --ntasks-per-node=1: each starts a "
            "process for every device itself"
        )
    job, step = (_read_number(environment, name, 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = _SLURM_PORTS[(job + step) % len(_SLURM_PORTS)]
    address = parse_first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return _make(_read_number(environment, "SLURM_PROCID", 0), count, "srun", address, port, environment)


def _make(
    number: int, count: int, launcher: str, address: str, port: int, environment: Mapping[str, str]
) -> LaunchInfo:
    if number >= count:
        raise Refused(f"{launcher} says that this is process {number} of {count}; allowed: 0 to {count - 1}")
    token = environment.get(TOKEN, "")
    if len(token) < SHORTEST_TOKEN:
        raise Refused(
            f"{launcher} started samestep on {count} machines, and {TOKEN} is {'too short' if token else 'not set'}; "
            f"allowed: the same secret on all of them, {SHORTEST_TOKEN} characters or more, as `openssl rand -hex 32` "
            f"gives; or, to use this machine alone, no variables of {launcher}'s"
        )
    if PORT in environment:
        port = _read_number(environment, PORT, 1, 65535)
    return LaunchInfo(number, count, launcher, address, port, token)


def _read_number(environment: Mapping[str, str], name: str, least: int, most: int = 2**31) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise Refused(f"the variable {name} is {text!r}; allowed: a whole number from {least}")
    return int(text)
