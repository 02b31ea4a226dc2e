"""MNIST's IDX files, made here in the real format, whole and damaged."""

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compare.base import workloads
from compare.base.interface import Array, Refused
from compare.data import idx
from compare.data.datasets import load

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_file(values: Array) -> bytes:
    """Return the bytes of an IDX file of unsigned bytes."""
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def images(count: int, side: int = 28) -> Array:
    """Return random images [count, side, side] uint8."""
    return np.random.default_rng(count).integers(256, size=(count, side, side), dtype=np.uint8)


def labels(count: int) -> Array:
    """Return labels [count] uint8: 0, 1, ... 9, 0, ..."""
    return (np.arange(count) % 10).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a small MNIST: 12 training and 5 test images."""
    for name, values in zip(NAMES, (images(12), labels(12), images(5), labels(5)), strict=True):
        (tmp_path / name).write_bytes(idx_file(values))
    return tmp_path


def plain(path: Path) -> None:
    """Leave the file as it is."""


def zipped(path: Path) -> None:
    """Replace the file by its gzip."""
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def dotted(path: Path) -> None:
    """Give the file the name with a dot."""
    path.rename(path.with_name(path.name.replace("-idx", ".idx")))


def dotted_and_zipped(path: Path) -> None:
    """Both."""
    zipped(path)
    dotted(path.with_name(path.name + ".gz"))


def unzipped_by_the_browser(path: Path) -> None:
    """Keep the name .gz for the decompressed data."""
    path.rename(path.with_name(path.name + ".gz"))


@pytest.mark.parametrize("change", [plain, zipped, dotted, dotted_and_zipped, unzipped_by_the_browser])
def test_files_are_read_under_every_name(folder: Path, change: Callable[[Path], None]) -> None:
    for name in NAMES:
        change(folder / name)
    dataset = load(workloads.get("mnist-cnn"), folder=str(folder), seed=0, batch_size=12)
    assert dataset.source == f"MNIST IDX files in {folder} (12 train, 5 test)"
    for part, count in ((dataset.train, 12), (dataset.test, 5)):
        assert (part.images.dtype, part.values().dtype) == (np.uint8, np.float32)
        assert part.labels.dtype == np.int32
        assert np.array_equal(part.values()[..., 0], images(count).astype(np.float32) / np.float32(255))
        assert np.array_equal(part.labels, labels(count))


def test_a_batch_larger_than_the_files_is_refused(folder: Path) -> None:
    with pytest.raises(Refused, match=r"batch size 13 .*12 train.*allowed: 2 to 12"):
        load(workloads.get("mnist-cnn"), folder=str(folder), seed=0, batch_size=13)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(Refused, match=rf"{name}: no such file; expected in .*{NAMES[0]}"):
        idx.load(folder)


def patched(offset: int, new: bytes) -> Callable[[bytes], bytes]:
    """Return a change of some bytes."""
    return lambda content: content[:offset] + new + content[offset + len(new) :]


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "empty": (NAMES[0], lambda content: b"", r"data end at offset 0: expected 4 bytes, found 0"),
    "zeros": (NAMES[0], patched(0, b"\1"), r"bytes 0100 at offset 0 are neither IDX"),
    "type": (NAMES[0], patched(2, b"\x0d"), r"IDX type 0x0d at offset 2; allowed: 0x08"),
    "rank": (NAMES[0], patched(3, b"\1"), r"1 dimensions at offset 3; allowed: 3"),
    "label rank": (NAMES[1], patched(3, b"\3"), r"3 dimensions at offset 3; allowed: 1"),
    "header": (NAMES[0], lambda content: content[:10], r"data end at offset 10: expected 16 bytes, found 10"),
    "no images": (NAMES[0], patched(4, bytes(4)), r"dimension 0 at offset 4; allowed: 1 and more"),
    "no columns": (NAMES[0], patched(12, bytes(4)), r"dimension 0 at offset 12"),
    "short": (NAMES[0], lambda content: content[:-1], r"data end at offset 9423: expected 9424 bytes, found 9423"),
    "long": (NAMES[0], lambda content: content + b"\0", r"data go on at offset 9424"),
    "huge": (NAMES[0], patched(4, b"\xff" * 4), r"dimensions \[4294967295, 28, 28\] at offset 4 .*up to 1073741824"),
    "size": (NAMES[0], patched(8, b"\0\0\0\x38\0\0\0\x0e"), r"56x14 pixels at offset 8; allowed: 28x28"),
    "label": (NAMES[1], patched(8 + 3, b"\x0a\x0b"), r"label 10 at offset 11; allowed: 0 to 9"),
    "count": (NAMES[3], lambda content: idx_file(labels(4)), r"4 labels at offset 4, but .* has 5 images"),
}


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named_with_the_offset(folder: Path, kind: str, compress: bool) -> None:
    name, change, message = DAMAGE[kind]
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    if compress:
        zipped(folder / name)
        name += ".gz"
    with pytest.raises(Refused, match=rf"/{name}: .*{message}"):
        idx.load(folder)


@pytest.mark.parametrize("cut", [5, 200, -4])
def test_a_truncated_gzip_stream_is_named(folder: Path, cut: int) -> None:
    zipped(folder / NAMES[0])
    path = folder / f"{NAMES[0]}.gz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(Refused, match=rf"/{NAMES[0]}\.gz: damaged gzip data after offset \d+ of the decompressed data"):
        idx.load(folder)


def test_a_wrong_gzip_checksum_is_named(folder: Path) -> None:
    zipped(folder / NAMES[1])
    path = folder / f"{NAMES[1]}.gz"
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    with pytest.raises(Refused, match=rf"/{NAMES[1]}\.gz: damaged gzip data after offset 20 .*CRC"):
        idx.load(folder)


def test_flipped_gzip_bits_are_named(folder: Path) -> None:
    zipped(folder / NAMES[0])
    path = folder / f"{NAMES[0]}.gz"
    content = bytearray(path.read_bytes())
    content[10] |= 0b110  # block type 3 does not exist
    path.write_bytes(content)
    with pytest.raises(Refused, match=rf"/{NAMES[0]}\.gz: damaged gzip data after offset 0 "):
        idx.load(folder)


def test_memory_grows_with_the_data_and_not_with_the_header(folder: Path) -> None:
    path = folder / NAMES[0]
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, 2**20, 28, 28) + bytes(100))
    tracemalloc.start()
    with pytest.raises(Refused, match=r"data end at offset 116: expected 822083600 bytes, found 116"):
        idx.read(path, 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_gzip_bomb_is_not_unpacked(folder: Path) -> None:
    path = folder / NAMES[1]
    path.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, 10) + bytes(2**24)))
    tracemalloc.start()
    with pytest.raises(Refused, match=r"data go on at offset 18"):
        idx.read(path, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_file_that_cannot_be_opened_is_named(folder: Path) -> None:
    with pytest.raises(Refused, match=rf"{folder}: cannot be read"):
        idx.read(folder, 3)
