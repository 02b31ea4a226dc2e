"""Which machine of a run this is: what torchrun and Slurm's srun say to each process that they start."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from compare.base.interface import Refused

TOKEN, PORT = "SAMESTEP_TOKEN", "SAMESTEP_PORT"
SHORTEST_TOKEN = 16
# Above the ports that systems give out by themselves; JAX takes its own from the same range, by the job's number, too.
_SLURM_PORTS = range(61440, 65536)


@dataclass(frozen=True)
class LaunchInfo:
    """This machine among those of a run.

    Attributes:
        number: which it is, from 0; the first runs the comparison, the others follow it.
        count: how many there are.
        launcher: what started samestep on each, for messages.
        address: the first machine's, a name or a number.
        port: on which the first machine waits for the others.
        token: the secret by which they know each other.
    """

    number: int
    count: int
    launcher: str
    address: str
    port: int
    token: str = field(repr=False)


def read(environment: Mapping[str, str]) -> LaunchInfo | None:
    """Return which machine this is, None where no launcher has started samestep on several.

    torchrun's variables (RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are those that other launchers
    and users set for torch as well (docs.pytorch.org, torchrun); of Slurm, only a step of srun's counts, not a batch
    script by itself (slurm.schedmd.com/srun.html, output environment variables).

    Raises:
        Refused: several processes a machine, no token, or variables that are missing or wrong.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    if "SLURM_STEP_NUM_TASKS" in environment:
        return _of_srun(environment)
    return None


def first_host(nodes: str) -> str:
    """Return the first name of Slurm's compressed list of nodes: of `gpu[07-12,30],login1` it is `gpu07`.

    Raises:
        Refused: the list names none.
    """
    found = re.match(r"(?:[^\[\],]|\[[^\[\]]+\])+", nodes.strip())
    if found is None:
        raise Refused(f"SLURM_STEP_NODELIST {nodes!r} names no node")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", found[0])


def _of_torchrun(environment: Mapping[str, str]) -> LaunchInfo | None:
    count = _whole(environment, "WORLD_SIZE", 1)
    if count == 1:
        return None
    local = _whole(environment, "LOCAL_WORLD_SIZE", 1) if "LOCAL_WORLD_SIZE" in environment else 1
    if local != 1:
        raise Refused(
            f"{local} samestep processes were started on this machine (LOCAL_WORLD_SIZE); allowed: torchrun "
            "--nproc-per-node 1: each starts a process for every device itself"
        )
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise Refused(f"RANK and WORLD_SIZE are set, {name} is not; torchrun sets all of them")
    port = _whole(environment, "MASTER_PORT", 1, 65534) + 1  # torchrun itself listens on the other
    return _checked(_whole(environment, "RANK", 0), count, "torchrun", environment["MASTER_ADDR"], port, environment)


def _of_srun(environment: Mapping[str, str]) -> LaunchInfo | None:
    count = _whole(environment, "SLURM_STEP_NUM_TASKS", 1)
    if count == 1:
        return None
    nodes = _whole(environment, "SLURM_STEP_NUM_NODES", 1)
    if nodes != count:
        raise Refused(
            f"srun started {count} samestep processes on {nodes} nodes; allowed: --ntasks-per-node=1: each starts a "
            "process for every device itself"
        )
    job, step = (_whole(environment, name, 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = _SLURM_PORTS[(job + step) % len(_SLURM_PORTS)]
    address = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return _checked(_whole(environment, "SLURM_PROCID", 0), count, "srun", address, port, environment)


def _checked(
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
        port = _whole(environment, PORT, 1, 65535)
    return LaunchInfo(number, count, launcher, address, port, token)


def _whole(environment: Mapping[str, str], name: str, least: int, most: int = 2**31) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise Refused(f"the variable {name} is {text!r}; allowed: a whole number from {least}")
    return int(text)
