"""Both frameworks get the same threads, and both tell what they have of the machine."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import jax
import pytest
import torch

from compare.base import commands
from compare.data import dataset_file, synthetic
from compare.data.datasets import Dataset
from compare.execution.child import Child
from compare.machine import resources as machine
from compare.machine import variables
from jaxbackend import resources
from tests.fakebackend import plans
from tests.parity import twins
from torchbackend import resources as of_torch

TOLD = 1

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not name threads")


@pytest.mark.parametrize("backend", twins.BOTH)
def test_the_threads_that_torch_is_told_to_have_jax_has_too(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("PJRT_NPROC", "NPROC", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", str(TOLD))
    train, test = synthetic.make((8, 8, 1), classes=10, seed=1, train=8, test=8)
    dataset_file.save(Dataset(train, test, ""), tmp_path / "data.safetensors")
    spec = twins.spec(backend, data=str(tmp_path / "data.safetensors"))
    added = variables.make_child_environment(backend, {}, "cpu", False, os.environ)
    with closing(Child(backend, f"{backend}backend", added, tmp_path)) as child:
        child.greet(120)
        child.call(commands.Open(spec=spec), 120)
        assert child.call(commands.Settings(), 120)["threads"] == TOLD


@pytest.mark.parametrize(
    ("inherited", "torch_gets", "jax_gets"),
    [
        ({}, "8", "8"),
        ({"OMP_NUM_THREADS": "4"}, None, "4"),
        ({"OMP_NUM_THREADS": "4,2"}, None, "4"),
        ({"OMP_NUM_THREADS": "", "MKL_NUM_THREADS": "2"}, None, "2"),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}, None, "2"),
        ({"OMP_NUM_THREADS": "0"}, "8", "8"),
        ({"OMP_NUM_THREADS": "64"}, None, "8"),
        ({"OMP_THREAD_LIMIT": "3"}, "3", "3"),
        ({"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "2"}, "1", "1"),
        ({"PJRT_NPROC": "2"}, "2", None),
        ({"NPROC": "2"}, "2", None),
        ({"OMP_NUM_THREADS": "4", "PJRT_NPROC": "2"}, None, None),
    ],
)
def test_the_side_that_is_told_nothing_gets_the_threads_of_the_other(
    inherited: dict[str, str], torch_gets: str | None, jax_gets: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("compare.machine.cpu.count_physical_cores", lambda: 8)
    assert variables.make_child_environment("torch", {}, "cpu", False, inherited).get("OMP_NUM_THREADS") == torch_gets
    assert variables.make_child_environment("jax", {}, "cpu", False, inherited).get("PJRT_NPROC") == jax_gets
    for more in ({"devices": 2}, {"machines": 2}):
        assert "OMP_NUM_THREADS" not in variables.make_child_environment("torch", {}, "cpu", False, inherited, **more)
    assert "PJRT_NPROC" not in variables.make_child_environment("jax", {}, "cuda", False, inherited)


def test_jax_tells_the_threads_of_one_device_of_a_cpu_alone():
    (device,) = jax.devices("cpu")
    assert resources.read_settings(device, 1)["threads"] >= 1
    assert "threads" not in resources.read_settings(device, 2)


# Each slows one side down, and nothing else shows it.
_LIMITS = {
    "jax": {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_cpu_max_isa=AVX",
    },
    "torch": {"GOMP_CPU_AFFINITY": "0", "ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}
_LIMITED = {
    "jax": {"threads": 1, "instruction_set": "avx"},
    "torch": {"usable_cores": 1, "instruction_set": "sse4", "limits": ["DEFAULT", "Intel SSE4.1"]},
}
_READ = {
    "jax": """
import jax, json
from compare.machine import resources as machine
from jaxbackend import resources
(device,) = jax.devices()
print(json.dumps({**resources.read_settings(device, 1), **machine.describe_process()}))
""",
    "torch": """
import json, torch
from compare.machine import resources as machine
from torchbackend import resources
torch.ones(999, 999) @ torch.ones(999, 999)
device, limits = torch.device("cpu"), list(resources._list_limits())
print(json.dumps({**resources.read_settings(device, 1), **machine.describe_process(), "limits": limits}))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", twins.BOTH)
def test_a_variable_that_slows_one_side_down_is_seen_in_its_process(backend: str):
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment = clean | {"PYTHONPATH": str(plans.ROOT), "JAX_PLATFORMS": "cpu"} | _LIMITS[backend]
    command = [sys.executable, "-P", "-c", _READ[backend]]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    settings = json.loads(done.stdout.splitlines()[-1])
    assert _LIMITED[backend].items() <= settings.items()
    assert settings["compiler_effort"].startswith("xla_backend_optimization_level 0" if backend == "jax" else "full")


def test_without_such_variables_both_sides_have_the_whole_machine():
    best = machine.lower_instruction_set([])
    assert of_torch.read_settings(torch.device("cpu"), 1)["compiler_effort"] == machine.FULL_EFFORT
    for settings in (resources.read_settings(jax.devices("cpu")[0], 1), of_torch.read_settings(torch.device("cpu"), 1)):
        assert settings["instruction_set"] == best
    assert machine.describe_process()["usable_cores"] == len(os.sched_getaffinity(0))
