"""How a contender in several processes ends when one of them does: its status and the reason."""

import ast
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from compare.base import commands, process_family, process_group
from compare.base.interface import ContenderFailed, RunSpec
from compare.base.process_group import RankInfo, find_interface
from compare.cluster.launch_info import TOKEN
from compare.data import dataset_file, synthetic
from compare.data.datasets import Dataset
from compare.execution.child import Child
from compare.worker import local_ranks
from compare.worker.local_ranks import LocalRanks
from compare.worker.rank_controller import RankController
from tests.fakebackend import plans
from torchbackend.backend import TorchBackend


class Contender:
    """A contender in two processes, scripted as `tests.fakebackend.ranks` says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._children = folder, list[Child]()
        train, test = synthetic.make((8, 8, 1), classes=10, seed=1, train=16, test=8)
        dataset_file.save(Dataset(train, test, "synthetic"), folder / "data.safetensors")

    def failure(self, first: str, second: str) -> ContenderFailed:
        """Return how a timed block fails once its second process ends."""
        script = json.dumps({"first": first, "second": second, "folder": str(self.folder)})
        variables = plans.environment(self.folder, {}) | {"SAMESTEP_RANKS": script}
        child = Child("crew", "tests.fakebackend.ranks", variables, self.folder)
        self._children.append(child)
        child.greet(60)
        child.call(commands.Open(spec=self._spec()), 60)
        others = psutil.Process(child.pid).children(recursive=True)
        with pytest.raises(ContenderFailed) as caught:
            child.call(commands.Block(steps=1), 30)
        assert not plans.remaining([child.pid, *(each.pid for each in others)])
        return caught.value

    def close(self) -> None:
        for child in self._children:
            child.close()

    def _spec(self) -> RunSpec:
        data = str(self.folder / "data.safetensors")
        return RunSpec("digits-cnn", "float32", "cpu", 8, 1, {"parallel": "ddp"}, 1, data, devices=2)


@pytest.fixture
def contender(tmp_path: Path) -> Generator[Contender]:
    found = Contender(tmp_path)
    yield found
    found.close()


def test_a_process_is_numbered_on_its_machine_too() -> None:
    places = [RankInfo(rank, 6, 3) for rank in range(6)]
    assert [each.local_rank for each in places] == [0, 1, 2, 0, 1, 2]
    assert [each.machines for each in places] == [2] * 6


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("10.0.0.2", "eth0"),
        ("::ffff:10.0.0.2", "eth0"),
        ("fe80::7%ib0", "ib0"),
        ("fe80::7", "ib0"),
        ("10.0.0.20", None),
    ],
)
def test_an_interface_is_found_by_its_address_as_either_end_writes_it(
    monkeypatch: pytest.MonkeyPatch, address: str, interface: str | None
) -> None:
    known = {"lo": "127.0.0.1", "eth0": "10.0.0.2", "ib0": "fe80::7%ib0"}
    entries = {name: [SimpleNamespace(address=each)] for name, each in known.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: entries)
    assert find_interface(address) == interface


@pytest.mark.parametrize("first", ["wait", "fail", "end"])
@pytest.mark.parametrize(
    ("second", "status", "said"),
    [
        ("out of memory", "oom", "rank 1 of 2: MemoryError: no more of it"),
        ("refuse", "refused", "rank 1 of 2: no such thing"),
        ("kernel", "oom", "rank 1 of 2: killed by the kernel because memory ran out"),
        ("kill", "crash", "rank 1 of 2: killed by signal 9 (SIGKILL)"),
        ("exit", "crash", "rank 1 of 2: ended with exit code 7"),
    ],
)
def test_a_contender_ends_as_the_process_that_ended_did(
    contender: Contender, first: str, second: str, status: str, said: str
) -> None:
    failure = contender.failure(first, second)
    assert failure.status == status
    assert said in failure.reason


@pytest.mark.parametrize(
    ("code", "before", "status", "reason"),
    [
        (process_family.EXIT_CODES["oom"], 3, "oom", "ended because memory ran out"),
        (process_family.EXIT_CODES["refused"], 3, "refused", "ended because it refused its input"),
        (1, 3, "crash", "ended with exit code 1"),
        (-9, 2, "oom", "killed by the kernel because memory ran out"),
        (-9, 3, "crash", "killed by signal 9 (SIGKILL)"),
        (-11, 2, "crash", "killed by signal 11 (SIGSEGV)"),
    ],
)
def test_an_exit_code_tells_how_a_process_ended(
    monkeypatch: pytest.MonkeyPatch, code: int, before: int, status: str, reason: str
) -> None:
    monkeypatch.setattr(process_family, "count_kernel_kills", lambda: 3)
    assert process_family.explain_exit_code(code, before) == (status, reason)


SHARED = """
import json, os, sys
from pathlib import Path
import numpy as np
from compare.base.interface import Batch, RunSpec
from compare.worker.rank_controller import RankController
from compare.worker.distributed_session import DistributedSession
from tests.fakebackend.ranks import PROCESS_GROUP, SCRIPT

ranks = RankController(PROCESS_GROUP, 2, "cpu")
session = DistributedSession(RunSpec(**json.loads(sys.argv[1])), ranks, lockstep=False)
batch = Batch(np.zeros((4, 8, 8, 1)), np.zeros(4, np.int64))
found = session.inspect(batch)
print({name: array.tolist() for name, array in found.items()})
print([sorted(each) for each in ranks.call_each("inspect", [batch, batch])])
print(vars(session.memory()))
left = [Path(SCRIPT["folder"], f"closed-{rank}") for rank in range(2)]
print([each.exists() for each in left])
del session
ranks.close_session()
print([each.exists() for each in left], flush=True)
os._exit(0)
"""


def test_processes_hand_over_their_own_part_and_give_their_session_back(contender: Contender, tmp_path: Path) -> None:
    script = json.dumps({"first": "wait", "second": "exit", "folder": str(tmp_path)})
    arguments = [sys.executable, "-c", SHARED, json.dumps(contender._spec().to_json())]
    done = subprocess.run(
        arguments, env={**os.environ, "SAMESTEP_RANKS": script}, capture_output=True, text=True, timeout=60, check=True
    )
    inspected, sent, memory, before, after = done.stdout.splitlines()
    assert ast.literal_eval(inspected) == {
        "activation/a": [0, 0, 1, 1],
        "logits": [0, 0, 1, 1],
        "loss": 0.5,
        "gradient/a": [0.0] * 9,
    }
    own = ["activation/a", "logits", "loss"]
    assert ast.literal_eval(sent) == [sorted([*own, "gradient/a"]), own]
    assert ast.literal_eval(memory) == {
        "live_peak_bytes": 11,
        "pool_peak_bytes": 20,
        "process_bytes": None,
        "static_bytes": None,
        "absent": {"static_bytes": "fake"},
    }
    assert (before, after) == ("[False, False]", "[True, True]")


BEGUN = """
import os, sys
from compare.base import process_group
from compare.worker import local_ranks, rank_controller
from tests.fakebackend.ranks import PROCESS_GROUP, PACKAGE

local_ranks.begin(PACKAGE)
begun = local_ranks._begun.processes[1]
if sys.argv[1] == "ended":
    begun.kill()
    begun.wait()
controller = rank_controller.RankController(PROCESS_GROUP, 2, "cpu")
print(process_group.FURTHER in os.environ, controller._locals[1].pid == begun.pid, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("device", "then", "used"), [("cpu", "lives", True), ("cpu", "ended", False), ("cuda", "lives", False)]
)
def test_processes_that_were_begun_are_used_if_they_live_and_are_those(
    tmp_path: Path, device: str, then: str, used: bool
) -> None:
    script = json.dumps({"first": "wait", "second": "exit", "folder": str(tmp_path)})
    told = {"SAMESTEP_RANKS": script, process_group.FURTHER: json.dumps({"local_world_size": 2, "device": device})}
    arguments, environment = [sys.executable, "-c", BEGUN, then], {**os.environ, **told}
    # In a session of its own, because a process without its first one ends its whole group.
    done = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=60, check=True, start_new_session=True
    )
    assert done.stdout.split() == ["False", str(used)]


def test_a_process_whose_first_is_gone_before_it_looks_ends(tmp_path: Path) -> None:
    script = json.dumps({"first": "wait", "second": "exit", "folder": str(tmp_path)})
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        *command, place = process_group.start_command(
            "tests.fakebackend.ranks", RankInfo(1, 2, 2), listener.getsockname()[1]
        )
        gone = json.loads(place) | {"parent": 2**30}
        environment = {**os.environ, "SAMESTEP_RANKS": script, TOKEN: "token"}
        done = subprocess.run(
            [*command, json.dumps(gone)], env=environment, timeout=30, check=False, start_new_session=True
        )
    assert done.returncode == -signal.SIGKILL


def test_who_is_told_of_no_process_begins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(process_group.FURTHER, raising=False)
    local_ranks.begin("none")
    assert local_ranks._begun is None


def test_a_process_that_cannot_be_begun_is_not_missed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError("no more")

    monkeypatch.setattr("compare.worker.local_ranks.subprocess.Popen", failing)
    monkeypatch.setenv(process_group.FURTHER, '{"local_world_size": 2, "device": "cpu"}')
    monkeypatch.setattr(local_ranks, "_begun", None)
    local_ranks.begin("none")
    assert local_ranks._begun is not None
    assert not local_ranks._begun.all_live
    with pytest.raises(OSError, match="no more"), closing(local_ranks._begun.listener):
        local_ranks.take_local_ranks("none", 2, "cpu")


def test_torch_trains_on_one_device_when_the_sessions_of_several_have_been_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = list[str]()
    backend = TorchBackend()
    backend._ranks = cast(RankController, SimpleNamespace(close_session=lambda: events.append("close")))
    monkeypatch.setattr("torchbackend.backend.TorchSession", lambda spec: events.append("open"))
    spec = RunSpec("digits-cnn", "float32", "cpu", 8, 1, {"parallel": "none"}, 1, "data")
    backend.open(spec)
    TorchBackend().open(spec)  # which never had several
    assert events == ["close", "open", "open"]


@pytest.mark.parametrize(
    ("inherited", "own"), [(None, ["1", "2"]), ("3,GPU-4d,0", ["GPU-4d", "0"]), ("3", ["", ""])], ids=str
)
def test_a_process_sees_its_own_gpu_alone(
    monkeypatch: pytest.MonkeyPatch, inherited: str | None, own: list[str]
) -> None:
    environments = list[dict[str, str]]()
    monkeypatch.setattr("compare.worker.local_ranks.subprocess.Popen", lambda _, env: environments.append(env))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited or "")
    if inherited is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    further = LocalRanks("none", 3, "cuda")
    further.start()
    further.listener.close()
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == own
    assert process_group.own_gpu(RankInfo(1, 2, 1), "cuda", {"CUDA_VISIBLE_DEVICES": "2,3"}) == {}, (
        "it trains on all that it sees"
    )
    assert process_group.own_gpu(RankInfo(1, 2, 2), "cpu", {}) == {}


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("F1128 22:28:15.8 19299 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_no=1", "--xla_no=1"),
        ("F0101 parse_flags_from_env.cc:229] Unknown flags in XLA_FLAGS: --xla_a --xla_b ", "--xla_a --xla_b"),
    ],
)
def test_unknown_flags_of_xla_are_named(line: str, flags: str) -> None:
    found = process_family.find_unknown_flags(line)
    assert found is not None
    assert f"XLA does not know {flags}, which the variable XLA_FLAGS names" in found
    assert process_family.find_unknown_flags("out of memory") is None
