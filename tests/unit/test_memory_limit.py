"""How a limit on memory reaches a child: the process's own on a CPU, a variable for JAX on a GPU."""

import math
import subprocess
import sys
import time
from typing import cast

import pytest

from compare.base.interface import Backend, RunSpec
from compare.machine import variables
from compare.worker.worker import Worker
from tests.fakebackend import plans


@pytest.mark.parametrize(("device", "limit", "held"), [("cpu", 5, [5]), ("cpu", None, []), ("cuda", 5, [])])
def test_the_worker_limits_its_process_on_a_cpu_before_it_reads_data(
    monkeypatch: pytest.MonkeyPatch, device: str, limit: int | None, held: list[int]
) -> None:
    seen: list[int] = []
    monkeypatch.setattr("compare.worker.process_memory.limit", seen.append)
    spec = RunSpec("digits-cnn", "float32", device, 8, 0, {}, 1, "no such file", memory_limit_bytes=limit)
    with pytest.raises(FileNotFoundError):
        Worker(cast(Backend, None), time.perf_counter).open(spec)
    assert seen == held


def test_the_limit_of_a_process_counts_from_what_it_holds() -> None:
    program = (
        "from compare.worker import process_memory\n"
        "kept = bytearray(200 << 20)\n"
        "process_memory.limit(100 << 20)\n"
        "more = bytearray(80 << 20)\n"
        "try:\n"
        "    most = bytearray(40 << 20)\n"
        "except MemoryError:\n"
        "    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=plans.ROOT, check=False)
    assert (done.stdout, done.stderr) == ("refused\n", "")


def test_a_gpus_limit_reaches_jax_as_a_fraction_and_no_other_child() -> None:
    user = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    added = variables.make_child_environment("jax", {}, "cuda", False, user, 1 / 3)
    assert math.isclose(float(added["XLA_CLIENT_MEM_FRACTION"]), 1 / 3)
    assert added["XLA_PYTHON_CLIENT_MEM_FRACTION"] == ""
    assert added["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    for backend, device, fraction in (("jax", "cuda", None), ("jax", "cpu", 0.5), ("torch", "cuda", 0.5)):
        others = variables.make_child_environment(backend, {}, device, False, user, fraction)
        assert not [name for name in others if "FRACTION" in name]
