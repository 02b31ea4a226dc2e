"""How the machines of a run come together, and what is refused: two samesteps in one process, over the loopback."""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from compare.base.interface import Batch, ContenderFailed, Refused, RunSpec
from compare.base.process_group import RankInfo, describe_error
from compare.base.protocol import ProtocolError
from compare.cluster import cluster, follower, wire
from compare.cluster.cluster import Cluster, Machine
from compare.cluster.launch_info import LaunchInfo
from tests.fakebackend import plans

TOKEN = "a-secret-of-tests"


@pytest.fixture
def first() -> LaunchInfo:
    with wire.listen() as probe:
        return LaunchInfo(0, 2, "torchrun", "127.0.0.1", probe.getsockname()[1], TOKEN)


def variables(here: LaunchInfo) -> dict[str, str]:
    return {
        "RANK": str(here.number),
        "WORLD_SIZE": str(here.count),
        "MASTER_ADDR": here.address,
        "MASTER_PORT": "29500",
        "SAMESTEP_PORT": str(here.port),
        "SAMESTEP_TOKEN": here.token,
    }


class Second:
    """The second machine's samestep in a thread, and how it ends."""

    def __init__(self, first: LaunchInfo, said: Mapping[str, Any] | None = None, **changes: Any) -> None:
        self._here = replace(first, **({"number": 1} | changes))
        self._said = {**cluster._describe_machine(), **(said or {})}
        self.ended: int | str | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            self.ended = follower.follow(self._here, 5, self._said)
        except Refused as error:
            self.ended = str(error)

    def end(self) -> int | str | None:
        self._thread.join(10)
        return self.ended


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "GATHER_SECONDS", 1.5)
    monkeypatch.setattr(cluster, "_ACCEPT_SECONDS", 0.2)


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), (Refused("no"), 2), (SystemExit(3), 3), (KeyboardInterrupt(), 3)],
)
def test_the_other_machine_ends_with_the_first_one_s_code(first: LaunchInfo, error: BaseException | None, code: int):
    second = Second(first)
    with (
        contextlib.nullcontext() if error is None else pytest.raises(type(error)),
        cluster.join(variables(first)) as machines,
    ):
        assert machines.count == 2
        assert machines.others[0].environment["python"]
        if error is not None:
            raise error
    assert second.end() == code


def test_machines_that_do_not_belong_together_are_refused_by_name(first: LaunchInfo):
    second = Second(first, token="another-secret-of-tests")
    with (
        pytest.raises(Refused, match=r"machine 1 of 2 did not come to 127\.0\.0\.1 port \d+ within 1\.5 s"),
        cluster.join(variables(first)),
    ):
        pass
    assert "has another SAMESTEP_TOKEN; allowed: the same on all machines" in str(second.end())


@pytest.mark.parametrize("name", ["samestep", "python"])
def test_other_versions_are_refused_by_name(first: LaunchInfo, name: str):
    said = cluster._describe_machine()
    second = Second(first, said | {"host": "far", "environment": said["environment"] | {name: "0.0"}})
    with (
        pytest.raises(Refused, match=rf"machine 1 \(far\) has {name} 0\.0; allowed: .*, as on this one"),
        cluster.join(variables(first)),
    ):
        pass
    assert second.end() == 2


def test_a_machine_that_says_it_is_another_is_refused(first: LaunchInfo):
    second = Second(first, number=7)
    with pytest.raises(Refused, match=r"machine 7 .* is none of 1 to 1"), cluster.join(variables(first)):
        pass
    assert second.end() == 2


def test_a_machine_that_says_it_is_one_that_has_come_is_refused(first: LaunchInfo):
    of_three = replace(first, count=3)
    others = [Second(of_three), Second(of_three)]
    with pytest.raises(Refused, match=r"machine 1 .* came twice"), cluster.join(variables(of_three)):
        pass
    assert [each.end() for each in others] == [2, 2]


def test_a_port_that_is_taken_is_refused_by_name(first: LaunchInfo):
    with (
        wire.listen(first.port),
        pytest.raises(Refused, match=rf"port {first.port}, .* cannot be had: .*in use.*SAMESTEP_PORT"),
        cluster.join(variables(first)),
    ):
        pass


def test_a_first_machine_that_is_not_there_is_refused_by_name(first: LaunchInfo, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Refused, match=r"machine 0 of 2 cannot be reached at 127\.0\.0\.1 port"):
        follower.follow(replace(first, number=1), 0.3, cluster._describe_machine())


class Stand(Cluster):
    """Made-up machines for plans. Nobody calls them."""

    def __init__(self, *gpus: int) -> None:
        super().__init__()
        self._there = tuple(Machine(number, f"far{number}", count, {}) for number, count in enumerate(gpus, start=1))

    @property
    def others(self) -> tuple[Machine, ...]:
        return self._there

    @property
    def count(self) -> int:
        return len(self._there) + 1


@pytest.mark.parametrize(
    ("texts", "changes", "said"),
    [
        (("torch", "jax"), {"devices": 1}, "--devices 1 on 2 machines is not allowed; .* such as --devices 2"),
        (("torch:stock+ddp", "jax"), {"devices": 3}, "--devices 3 on 2 machines is not allowed; allowed: equally many"),
        (
            ("torch:stock+ddp", "jax"),
            {"devices": 4, "device": "cuda"},
            r"--devices 4, 2 on each of 2 machines is not allowed: 1 GPUs are visible on machine 1 \(far1\)",
        ),
        (
            ("torch:stock+ddp", "jax"),
            {"devices": 256, "batch_size": 256},
            "--devices 256, 128 on each of 2 machines is not allowed: 64 parts of this CPU can be used",
        ),
    ],
)
def test_devices_that_machines_do_not_have_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: tuple[str, str], changes: dict[str, Any], said: str
):
    monkeypatch.setattr("compare.machine.environment.has_cuda", lambda: True)
    monkeypatch.setattr("compare.machine.environment.count_visible_gpus", lambda: 2)
    with pytest.raises(Refused, match=said):
        plans.make(tmp_path, texts, cluster=Stand(1), **changes)


def test_a_machine_that_is_gone_ends_what_is_spread_over_it_and_names_it(first: LaunchInfo):
    second = Second(first, {"host": "far"})
    with cluster.join(variables(first)) as machines:
        share = machines.share()
        assert share is not None
        peer = machines._peers[0]
        peer._wire.close()
        second.end()
        with pytest.raises(ContenderFailed, match=r"crash: machine 1 \(far\) does not answer"):
            share.start("fake", "tests.fakebackend", "cpu", {}, "cache", 1)
        assert share.lost() == ("crash", "machine 1 (far) is gone")
        share.end()
    assert second.end() == follower.GONE


def test_each_process_of_another_machine_sees_its_own_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = list[str]()

    def started(_: object, environment: dict[str, str], log: object) -> None:
        seen.append(environment.get("CUDA_VISIBLE_DEVICES", "all"))
        raise OSError(0, "enough")

    monkeypatch.setattr(follower, "ProcessFamily", started)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shares = follower.Shares(cast(wire.Wire, None), "127.0.0.1", tmp_path)
    told = {"backend": "torch", "package": "none", "environment": {}, "cache": "cache", "port": 1}
    for rank, here, device in ((2, 2, "cuda"), (3, 2, "cuda"), (1, 1, "cuda"), (3, 2, "cpu")):
        assert "error" in shares._start(0, told | {"device": device, "ranks": [vars(RankInfo(rank, 4, here))]})
    assert seen == ["0", "1", "all", "all"]


def test_what_cannot_be_started_there_says_why(first: LaunchInfo):
    second = Second(first, {"host": "far"})
    with cluster.join(variables(first)) as machines:
        share = machines.share()
        assert share is not None
        share.start("fake", "tests.fakebackend.absent", "cpu", {}, "cache", 1)
        plans.until(share.lost)
        status, reason = share.lost() or ("", "")
        share.end()
    assert (status, second.end()) == ("crash", 0)
    assert "machine 1 (far): a process ended with exit code 1; last output: " in reason
    assert "No module named tests.fakebackend.absent" in reason


def test_whoever_comes_without_the_token_is_not_let_in():
    with wire.listen() as listener:
        port, found = listener.getsockname()[1], list[wire.Wire | None]()
        thread = threading.Thread(target=lambda: found.append(wire.accept(listener, TOKEN, 5)))
        thread.start()
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(bytes(32))  # it does not mind what the other end proves
            assert len(stranger.recv(64, socket.MSG_WAITALL)) == 64
            stranger.sendall(bytes(32))
            thread.join()
            assert stranger.recv(1) == b""
    assert found == [None]


def test_who_comes_waits_for_the_other_end_as_long_as_it_may(monkeypatch: pytest.MonkeyPatch):
    with wire.listen() as listener:
        port, found = listener.getsockname()[1], list[wire.Wire]()
        thread = threading.Thread(target=lambda: found.append(wire.connect("127.0.0.1", port, TOKEN, 5)))
        with monkeypatch.context() as patch:
            patch.setattr(wire, "_PROOF_SECONDS", 0.1)
            thread.start()
            time.sleep(0.5)  # the other end is busy
        other = wire.accept(listener, TOKEN, 5)
        thread.join()
    assert other is not None
    for end in (*found, other):
        end.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), {"status": "oom", "reason": "MemoryError: no message"}),
        (ArithmeticError("full"), {"status": "oom", "reason": "ArithmeticError: full"}),
        (Refused("no such device\nat all"), {"status": "refused", "reason": "no such device"}),
        (ValueError("broken"), {"status": "crash", "reason": "ValueError: broken"}),
    ],
)
def test_describe_error_have_the_status_of_what_ended_a_process(error: Exception, words: dict[str, str]):
    assert describe_error(lambda e: isinstance(e, ArithmeticError), error) == words


def _ends() -> tuple[wire.Wire, wire.Wire]:
    with wire.listen() as listener:
        found: list[wire.Wire | None] = []
        thread = threading.Thread(target=lambda: found.append(wire.accept(listener, TOKEN, 5)))
        thread.start()
        end = wire.connect("127.0.0.1", listener.getsockname()[1], TOKEN, 5)
        thread.join()
    other = found[0]
    assert other is not None
    return end, other


def test_values_cross_as_they_are():
    spec = RunSpec("w", "float64", "cpu", 4, 1, {"parallel": "ddp"}, 1, "data")
    images = np.arange(12, dtype=np.float32).reshape(2, 2, 3, 1)[:, ::-1]
    batch = Batch(images, np.array([1, 2], np.int32))
    arrays: dict[str, Any] = {}
    end, other = _ends()
    sent = [spec, [batch], {"a": {"b": np.float64(np.nan) * np.ones(())}}, 3, None, True]
    end.send({"values": wire.pack(sent, arrays)}, arrays)
    message, came = other.receive()
    got = wire.unpack(message["values"], came)
    assert got[0] == spec
    assert got[1][0].levels is None
    np.testing.assert_array_equal(got[1][0].images, images)
    assert got[1][0].labels.dtype == np.int32
    assert got[1][0].images.flags.writeable  # torch shares it
    assert np.isnan(got[2]["a"]["b"])
    assert got[2]["a"]["b"].shape == ()
    assert got[3:] == [3, None, True]
    end.close()
    with pytest.raises(EOFError):
        other.receive()
    other.close()


@pytest.mark.parametrize("array", [np.array([True, False]), np.ones((0, 3), np.float16), np.array(-1), np.eye(3).T[1:]])
def test_arrays_of_every_kind_cross_and_what_follows_them_too(array: np.ndarray[Any, Any]):
    end, other = _ends()
    for _ in range(2):
        end.send({"next": True}, {"a": array, "b": np.array(2.0)})
        message, came = other.receive()
        assert message == {"next": True}
        assert (came["a"].dtype, came["a"].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(came["a"], array)
        assert came["b"] == 2.0
    end.close()
    other.close()


@pytest.mark.parametrize(
    ("text", "size", "said"),
    [
        (b"[", 0, "not JSON"),
        (b"{}", 0, "not JSON"),
        (b"[3, []]", 0, "not an object"),
        (b'[{}, [["a", "|O", [1]]]]', 8, "arrays of no number"),
        (b'[{}, [["a", "<f8", [-1]]]]', 0, "arrays of no number"),
        (b'[{}, [["a", "<f9", [1]]]]', 8, "not JSON"),
        (b'[{}, [["a", "<f8", [1000000000000]]]]', 8, "arrays that are not of 8 bytes"),
        (b'[{}, [["a", "<f8", [1]], ["a", "<f8", [1]]]]', 16, "arrays of one name"),
        (b'[{}, [["a", "<f8", [Infinity]]]]', 8, "not JSON"),
        (b'[{}, [["a", "(", [1]]]]', 8, "not JSON"),
        (b'[{}, [["a", "<f8", [0, 4611686018427387904]]]]', 0, "not JSON"),
        (b"[{}, []]", 1 << 41, "a message of 8 "),
    ],
)
def test_what_is_no_message_is_said_so_before_anything_is_made_of_it(text: bytes, size: int, said: str):
    end, other = _ends()
    end._connection.sendall(wire._LENGTHS.pack(len(text), size) + text)
    with pytest.raises(ProtocolError, match=said):
        other.receive()
    end.close()
    other.close()


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array(1j)])
def test_what_is_no_number_is_refused_before_anything_is_sent(array: np.ndarray[Any, Any]):
    end, other = _ends()
    with pytest.raises(ValueError, match="arrays of no number: b"):
        end.send({}, {"a": np.ones(3), "b": array})
    end.send({"next": True})
    assert other.receive() == ({"next": True}, {})
    end.close()
    other.close()
