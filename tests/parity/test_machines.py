"""Two machines train as one device does: two samesteps on this machine that use only the network."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from compare.base import commands
from compare.base.interface import ContenderFailed, RunSpec
from compare.cluster import cluster
from compare.cluster.cluster import Cluster
from compare.data import dataset_file, synthetic
from compare.data.datasets import Dataset
from compare.execution.child import Child
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun
from compare.settings import plan
from compare.settings.options import Settings
from tests.fakebackend import plans
from tests.parity.devices import BATCH, LIMIT, WORKLOAD, Recorder, distance, recorded
from tests.unoptimised import VARIABLES

pytestmark = pytest.mark.xdist_group("devices")

DEVICES = 4  # two on each
SPREAD = ("torch:stock+ddp", "jax:stock+sharded", "jax:stock+pmap")


def launched(number: int, **changes: str) -> dict[str, str]:
    """Return the variables that `torchrun --nnodes 2` sets on one of two machines."""
    with cluster.wire.listen() as probe:
        port = probe.getsockname()[1]
    return {
        "RANK": str(number),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "SAMESTEP_PORT": str(port),
        "SAMESTEP_TOKEN": "of-these-tests-only",
    } | changes


def follower(variables: dict[str, str]) -> "subprocess.Popen[str]":
    """Start samestep as the launcher does on the second machine."""
    return subprocess.Popen(
        [sys.executable, "-m", "compare", "compare"],
        env=os.environ | VARIABLES | {**variables, "RANK": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks(samestep: int) -> list[psutil.Process]:
    """Return the training processes that a samestep has started, in order."""
    found: dict[int, psutil.Process] = {}
    for each in psutil.Process(samestep).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--rank" in (command := each.cmdline()):
                found[json.loads(command[-1])["rank"]] = each
    return [found[rank] for rank in sorted(found)]


@contextmanager
def two_machines() -> Generator[tuple[Cluster, "subprocess.Popen[str]"]]:
    """Connect two machines. At the end, the second is released and leaves no process."""
    variables = launched(0)
    second = follower(variables)
    try:
        with cluster.join(variables) as machines:
            yield machines, second
        assert second.wait(20) == 0 or second.returncode == -signal.SIGKILL
    finally:
        second.kill()
        second.communicate()


class Run:
    """The children of one plan over two machines."""

    def __init__(self, machines: Cluster, second: int, folder: Path, recorder: Recorder, **changes: Any) -> None:
        self.second, self._folder = second, folder
        values: dict[str, Any] = {"batch_size": BATCH, "precision": "float64", "seed": 3, "devices": DEVICES} | changes
        self.plan = plan.make(
            Settings(
                contenders=("torch:stock", "jax:stock", *SPREAD),
                workload=WORKLOAD,
                device="cpu",
                epochs=1,
                out=folder,
                **values,
            ),
            dataset=recorder.dataset,
            cluster=machines,
        )
        self._launcher, self._recorder = Launcher(self.plan, folder), recorder
        self.children: list[Child] = []

    def child(self, name: str) -> Child:
        child = self._launcher.start(self._outcome(name), purpose="round")
        self.children.append(child)
        child.greet(120)
        return child

    def spec(self, name: str) -> RunSpec:
        data = str(self._recorder.folder / "data.safetensors")
        return self._launcher.spec(self._outcome(name), data=data)

    def record(self, child: Child, name: str) -> Any:
        return recorded(child, self.spec(name), self._folder)

    def elsewhere(self) -> list[psutil.Process]:
        """Return the processes that the second machine's samestep has started for children.

        A shell that removes its temporary folder lives as long as samestep.
        """
        found = list[psutil.Process]()
        for each in psutil.Process(self.second).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.name() != "sh":
                    found.append(each)
        return found

    def ranks(self) -> list[psutil.Process]:
        """Return those that train, in order."""
        return ranks(self.second)

    def _outcome(self, name: str) -> ContenderRun:
        return ContenderRun(next(each for each in self.plan.contenders if each.name == name))

    def close(self) -> None:
        for child in self.children:
            child.close()


@pytest.fixture(scope="module")
def together() -> Iterator[tuple[Cluster, "subprocess.Popen[str]"]]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        with two_machines() as found:
            yield found


@pytest.fixture
def run(together: tuple[Cluster, "subprocess.Popen[str]"], tmp_path: Path, recorder: Recorder) -> Iterator[Run]:
    made = Run(together[0], together[1].pid, tmp_path, recorder)
    yield made
    made.close()
    assert not made.elsewhere()


def test_torch_on_two_machines_trains_as_one_device_does_until_one_runs_out_of_memory(
    run: Run, recorder: Recorder, tmp_path: Path
):
    child = run.child("torch:stock+ddp")
    assert distance(run.record(child, "torch:stock+ddp"), recorder.record("torch", "stock")) <= LIMIT
    far = run.ranks()
    assert len(far) == DEVICES // 2
    few = far[0].memory_info().vms + (8 << 20)
    far[0].rlimit(resource.RLIMIT_AS, (few, few))
    train, test = synthetic.make(WORKLOAD.model.image, classes=10, seed=1, train=40000, test=40000)
    dataset_file.save(Dataset(train, test, "synthetic"), tmp_path / "large.safetensors")
    spec = replace(run.spec("torch:stock+ddp"), data=str(tmp_path / "large.safetensors"), batch_size=40000)
    with pytest.raises(ContenderFailed, match=r"rank 2 of 4: ") as caught:
        child.call(commands.Open(spec=spec), 60)
    assert caught.value.status == "oom"


@pytest.mark.parametrize("name", ["jax:stock+sharded", pytest.param("jax:stock+pmap", marks=pytest.mark.thorough)])
def test_jax_on_two_machines_trains_as_one_device_does(run: Run, recorder: Recorder, name: str):
    child = run.child(name)
    assert distance(run.record(child, name), recorder.record("jax", "stock")) <= LIMIT
    assert len(run.ranks()) == 1
    child.call(commands.Open(spec=run.spec(name)), 120)
    child.call(commands.Block(steps=2), 120)
    found = child.call(commands.Settings(), 120)
    told = {name: found[name] for name in ("parallel", "devices", "batch_size", "batch_norm")}
    way = name.partition("+")[2]
    assert told == {"parallel": way, "devices": DEVICES, "batch_size": BATCH, "batch_norm": "sync"}
    proof = child.call(commands.ProveWork(steps=2), 120)
    assert (proof.dispatched, proof.not_finite) == (proof.exported, None)
    assert (child.call(commands.MeasureMemory(steps=1), 120).framework.static_bytes or 0) > 0


def test_a_process_that_hangs_on_the_other_machine_ends_its_contender_by_its_deadline(run: Run):
    child = run.child("torch:stock+ddp")
    child.call(commands.Open(spec=run.spec("torch:stock+ddp")), 120)
    family = [*run.elsewhere(), *psutil.Process(child.pid).children(recursive=True), psutil.Process(child.pid)]
    run.ranks()[0].suspend()
    with pytest.raises(ContenderFailed, match="block took longer than its deadline of 1 s") as caught:
        child.call(commands.Block(steps=2), 1)
    assert caught.value.status == "timeout"
    assert not plans.remaining([each.pid for each in family])


def test_a_process_that_dies_on_the_other_machine_leaves_the_partner_its_result(tmp_path: Path):
    """Whole comparisons, as a launcher starts them: the partner is the fake backend, which takes no time."""
    command = [sys.executable, "-m", "tests.fakebackend.program", "compare", "torch:stock+ddp", "fake"]
    command += ["--devices", "2", "--device", "cpu", "--skip-agreement", "--rounds", "2", "--epochs", "1"]
    command += ["--out", str(tmp_path / "out")]
    variables = os.environ | launched(0) | plans.environment(tmp_path, {})
    both = [
        subprocess.Popen(command, env={**variables, "RANK": str(number)}, stdout=subprocess.DEVNULL)
        for number in range(2)
    ]
    try:
        plans.until(lambda: ranks(both[1].pid), 60)
        ranks(both[1].pid)[0].kill()
        assert [each.wait(90) for each in both] == [3, 3]
    finally:
        for each in both:
            each.kill()
            each.wait()
    first, second = json.loads((tmp_path / "out" / "result.json").read_text())["contenders"]
    assert (first["status"], second["status"]) == ("crash", "ok")
    assert re.search(r"machine 1 \(.*\): a process killed by signal 9 \(SIGKILL\)", first["reason"])
    assert len(second["step_seconds"]["samples"]) == 2
