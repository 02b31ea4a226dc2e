"""CIFAR-10's binary files, made here in the real format, whole and damaged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compare.base import workloads
from compare.base.interface import Array, Refused
from compare.data import cifar
from compare.data.datasets import load

NAMES = (*cifar.TRAIN, *cifar.TEST)
COUNTS = (3, 1, 2, 4, 1, 5)


def records(count: int, seed: int) -> Array:
    """Return random records [count, 3073] uint8."""
    content = np.random.default_rng(seed).integers(256, size=(count, 3073), dtype=np.uint8)
    content[:, 0] %= 10
    return content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a small CIFAR-10: 11 training and 5 test images."""
    for seed, (name, count) in enumerate(zip(NAMES, COUNTS, strict=True)):
        (tmp_path / name).write_bytes(records(count, seed).tobytes())
    return tmp_path


def test_values_are_those_of_the_published_format(folder: Path) -> None:
    train, test = cifar.load(folder)
    content = np.concatenate([records(count, seed) for seed, count in enumerate(COUNTS[:5])])
    assert np.array_equal(train.labels, content[:, 0])
    for number, row, column, channel in ((0, 0, 0, 0), (10, 31, 0, 1), (3, 0, 31, 2), (7, 12, 5, 0)):
        byte = content[number, 1 + channel * 1024 + row * 32 + column]
        mean, std = (0.4914, 0.4822, 0.4465)[channel], (0.2470, 0.2435, 0.2616)[channel]
        assert train.values()[number, row, column, channel] == np.float32((byte / 255 - mean) / std)
    assert (train.images.shape, test.images.shape) == ((11, 32, 32, 3), (5, 32, 32, 3))
    assert (train.images.dtype, train.values().dtype, train.labels.dtype) == (np.uint8, np.float32, np.int32)
    assert np.array_equal(test.labels, records(5, 5)[:, 0])


def test_every_value_is_normalised_per_channel(folder: Path) -> None:
    _, test = cifar.load(folder)
    pixels = records(5, 5)[:, 1:].reshape(5, 3, 32, 32).transpose(0, 2, 3, 1)
    expected = (pixels / 255 - np.array([0.4914, 0.4822, 0.4465])) / np.array([0.2470, 0.2435, 0.2616])
    np.testing.assert_array_equal(test.values(), expected.astype(np.float32))


def test_the_archives_own_folder_is_found(folder: Path) -> None:
    inner = folder / "cifar-10-batches-bin"
    inner.mkdir()
    for name in NAMES:
        (folder / name).rename(inner / name)
    dataset = load(workloads.get("cifar-cnn"), folder=str(folder), seed=0, batch_size=11)
    assert dataset.source == f"CIFAR-10 binary files in {folder} (11 train, 5 test)"


def test_a_batch_larger_than_the_files_is_refused(folder: Path) -> None:
    with pytest.raises(Refused, match=r"batch size 12 .*11 train.*allowed: 2 to 11"):
        load(workloads.get("cifar-cnn"), folder=str(folder), seed=0, batch_size=12)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(Refused, match=rf"/{name}: no such file; expected: data_batch_1\.bin.*test_batch\.bin"):
        cifar.load(folder)


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", r"empty, the data end at offset 0"),
    "short": (lambda content: content[:100], r"the record at offset 0 is cut off, 100 of 3073 bytes"),
    "byte missing": (lambda content: content[:-1], r"the record at offset 9219 is cut off, 3072 of 3073 bytes"),
    "byte added": (lambda content: content + b"\0", r"the record at offset 12292 is cut off, 1 of 3073 bytes"),
    "label": (lambda content: content[:6146] + b"\x0a" + content[6147:], r"label 10 at offset 6146; allowed: 0 to 9"),
}


@pytest.mark.parametrize("name", ["data_batch_4.bin", "test_batch.bin"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named_with_the_offset(folder: Path, name: str, kind: str) -> None:
    change, message = DAMAGE[kind]
    (folder / name).write_bytes(change(records(4, 9).tobytes()))
    with pytest.raises(Refused, match=rf"/{name}: {message}"):
        cifar.load(folder)


def test_a_file_beyond_memory_is_refused_before_it_is_read(folder: Path) -> None:
    with (folder / "test_batch.bin").open("wb") as file:
        file.truncate(2**30 + 1)  # sparse: takes no room on the disk
    with pytest.raises(Refused, match=r"/test_batch\.bin: 1073741825 bytes; allowed: up to 1073741824"):
        cifar.load(folder)


def test_a_file_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", broken)
    with pytest.raises(Refused, match=r"/data_batch_1\.bin: cannot be read: .*Input/output error"):
        cifar.load(folder)
