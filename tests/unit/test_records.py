"""The files that a certificate is judged from: what is in them, how they are read, and when they are deleted."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import SafetensorError

# safetensors' annotations leave the path's type parameter open.
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from compare.base import tensors, workloads
from compare.base.interface import Arrays, Refused, RunSpec
from compare.base.records import Record
from compare.data import dataset_file, datasets
from compare.execution import record_certificates
from compare.execution.certificate_cases import Case
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.worker.worker import Worker
from tests.fakebackend import plans
from tests.fakebackend.script import Silent
from tests.fakebackend.session import FakeBackend

CASES = (Case(8, None), Case(4, None))
TWICE = 2 * 2  # two contenders, each recorded twice at the timed precision


@pytest.mark.parametrize(("deterministic", "left"), [(False, 0), (True, TWICE)])
def test_records_are_deleted_when_they_are_judged_but_those_that_were_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool, left: int
) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), precision="float64", deterministic=deterministic)
    launcher, outcomes = (
        Launcher(plan, tmp_path),
        RunState(plan, [ContenderRun(contender) for contender in plan.contenders]),
    )
    dataset_file.save(plan.dataset, launcher.dataset)
    record_certificates.certify(launcher, outcomes, CASES, lambda *_: None)
    assert outcomes.certificates["other"].passed
    assert len(list(tmp_path.glob("record-*"))) == left


def drawn(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "c": random.normal(size=(3, 5)),
        "a": random.normal(size=7).astype(np.float32),
        "half": random.normal(size=(2, 1, 3)).astype(np.float16),
        "scalar": np.asarray(random.normal()),
        "none": np.zeros((0, 4)),
        "labels": random.integers(0, 10, 9, np.int32),
        "bytes": random.integers(0, 255, 3, np.uint8),
        "turned": random.normal(size=(4, 3)).T,
    }


@pytest.mark.parametrize("seed", range(5))
def test_arrays_come_back_bit_for_bit_and_as_the_library_reads_them(tmp_path: Path, seed: int) -> None:
    made, path = drawn(seed), tmp_path / "folder" / "part"
    tensors.save(made, path)
    library: dict[str, NDArray[np.generic]] = load_file(path)
    found = tensors.load(path)
    assert found.keys() == library.keys() == made.keys()
    for name, array in made.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(found[name], library[name])


def test_arrays_of_no_bytes_are_read_too(tmp_path: Path) -> None:
    tensors.save({}, tmp_path / "nothing")
    assert tensors.load(tmp_path / "nothing") == {}
    tensors.save({"none": np.zeros((0, 2))}, tmp_path / "empty")
    assert tensors.load(tmp_path / "empty")["none"].shape == (0, 2)


def test_a_record_is_mapped_in_order_and_outlives_its_files(tmp_path: Path) -> None:
    made = drawn(1)
    names = ["scalar", "c", "turned", "a"]
    record = Record(tmp_path / "record", names)
    record.begin()
    for name in reversed(names):
        tensors.save({name: made[name]}, tmp_path / "record" / name)
    found = record.load()
    assert list(found) == names
    assert not found["c"].flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        found["c"][0] = 0
    record.delete()
    assert not record.folder.exists()
    np.testing.assert_array_equal(found["c"], made["c"])
    record.delete()  # deleted is deleted


def test_only_a_folder_that_a_record_made_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").write_text("kept", encoding="utf-8")
    for folder in (tmp_path, Path()):
        Record(folder).delete()
        with pytest.raises(FileExistsError, match="is not a record"):
            Record(folder).begin()
    with pytest.raises(FileExistsError, match="is not a record"):
        Worker(FakeBackend(Silent("fake", json.dumps({"folder": ""}))), lambda: 0.0).record(cast(Any, None), 3, "")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_what_an_earlier_try_left_of_a_record_is_no_part_of_the_next(tmp_path: Path) -> None:
    for part in ("step1", "step2"):
        Record(tmp_path / "record").begin()
        tensors.save({part: np.zeros(1)}, tmp_path / "record" / part)
    assert Record(tmp_path / "record", ["step2"]).load().keys() == {"step2"}
    assert not (tmp_path / "record" / "step1").exists()


def test_a_part_that_is_written_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        tensors.save({"loss": np.asarray(value)}, tmp_path / "record" / "step1")
    assert Record(tmp_path / "record", ["loss"]).load()["loss"] == 2.0


SERIALIZING = "Error while serializing: I/O error: {} (os error {})"
FULL = [
    SafetensorError(SERIALIZING.format("No space left on device", 28)),
    SafetensorError(SERIALIZING.format("Disk quota exceeded", 122)),
    OSError(errno.ENOSPC, "No space left on device"),
]
"""As safetensors 0.8 says it on a file system that is full, and as Python does."""


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, part: str) -> None:
    """Let the disk take all parts but one."""
    save = tensors.save_file

    def fail(arrays: Any, path: Path) -> None:
        if path.name == part:
            raise error
        save(arrays, path)

    monkeypatch.setattr(tensors, "save_file", fail)


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_is_named_with_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error, "step1")
    with pytest.raises(Refused) as caught:
        tensors.save({"loss": np.zeros((2, 2**26))}, tmp_path / "step1")
    assert str(caught.value) == (
        f"no space is left in {tmp_path}, where 1 GiB more were to be written; "
        "allowed: TMPDIR set to a folder with more space"
    )


@pytest.mark.parametrize("error", [SafetensorError(SERIALIZING.format("I/O error", 5)), SafetensorError("odd")])
def test_another_error_of_a_disk_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error, "step1")
    with pytest.raises(SafetensorError):
        tensors.save({}, tmp_path / "step1")


@pytest.mark.parametrize(
    ("folder", "room"),
    [("disk", 1000), ("memory", 300), ("memory/on/disk", 1000), ("small", 100), ("over", 1000), ("link", 300)],
)
def test_what_may_be_written_to_memory_is_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, room: int
) -> None:
    kinds = {"": "ext4", "memory": "tmpfs", "memory/on": "xfs", "small": "ramfs", "over": "tmpfs"}
    mounted = [SimpleNamespace(mountpoint=str(tmp_path / at), fstype=kind) for at, kind in kinds.items()]
    mounted.append(SimpleNamespace(mountpoint=str(tmp_path / "over"), fstype="ext4"))
    monkeypatch.setattr(tensors.psutil, "disk_partitions", lambda all: mounted if all else [])
    monkeypatch.setattr(tensors.psutil, "virtual_memory", lambda: SimpleNamespace(available=600))
    free = {tmp_path / "small": 100}
    monkeypatch.setattr(tensors.shutil, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, 1000)))
    for each in ("memory/on/disk", "memory/folder", "disk"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "link").symlink_to("memory/folder")
    assert tensors.find_room(tmp_path / folder) == room


def test_a_record_that_fails_leaves_its_space_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset_file.save(datasets.load(workloads.get("digits-cnn"), folder=None, seed=0, batch_size=8), tmp_path / "data")
    worker = Worker(FakeBackend(Silent("fake", json.dumps({"folder": ""}))), lambda: 0.0)
    path, knobs = str(tmp_path / "data"), {"steps-per-dispatch": 1}
    told = RunSpec("digits-cnn", "float64", "cpu", batch_size=8, seed=0, knobs=knobs, epochs=1, data=path)
    folder = tmp_path / "record"
    worker.record(told, 3, str(folder))
    assert {path.name for path in folder.iterdir()} >= {"initial", "step1", "delta"}
    failing(monkeypatch, FULL[0], "delta")
    with pytest.raises(Refused, match="no space is left"):
        worker.record(told, 3, str(folder))
    assert not folder.exists()


@pytest.mark.parametrize(("size", "taken"), [(0, True), (29, True), (30, False)])
def test_memory_takes_what_leaves_more_than_half_of_it(monkeypatch: pytest.MonkeyPatch, size: int, taken: bool) -> None:
    monkeypatch.setattr(tensors.psutil, "virtual_memory", lambda: SimpleNamespace(total=100, available=80))
    assert tensors.memory_takes(size) is taken
