"""On a CPU both frameworks use the number of threads that the user sets, and both report it."""

import os
import sys
from contextlib import closing
from pathlib import Path

import jax
import pytest

from compare.base import commands
from compare.data import dataset_file, synthetic
from compare.data.datasets import Dataset
from compare.execution.child import Child
from compare.machine import variables
from jaxbackend.only import threads
from tests.parity import twins

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
    ("inherited", "added"),
    [
        ({}, None),
        ({"OMP_NUM_THREADS": "4"}, "4"),
        ({"OMP_NUM_THREADS": "4,2"}, "4"),
        ({"OMP_NUM_THREADS": "", "MKL_NUM_THREADS": "2"}, "2"),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}, "2"),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": "8"}, None),
        ({"OMP_NUM_THREADS": "64"}, None),
        ({"OMP_NUM_THREADS": "4", "PJRT_NPROC": "2"}, None),
        ({"OMP_NUM_THREADS": "4", "NPROC": "2"}, None),
    ],
)
def test_a_users_own_word_to_xla_wins_and_threads_beyond_the_cores_are_none_of_torchs(
    inherited: dict[str, str], added: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 8)
    assert variables.make_child_environment("jax", {}, "cpu", False, inherited).get("PJRT_NPROC") == added
    for backend, device in (("torch", "cpu"), ("jax", "cuda")):
        assert "PJRT_NPROC" not in variables.make_child_environment(backend, {}, device, False, inherited)


def test_threads_are_told_of_one_device_of_a_cpu_alone():
    (device,) = jax.devices("cpu")
    assert threads.settings([device])["threads"] >= 1
    assert threads.settings([device, device]) == {}
