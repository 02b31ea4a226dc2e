"""MNIST in its original IDX format (LeCun, Cortes and Burges 1998), as it is or compressed with gzip.

An IDX file has two zero bytes, a type byte (8: unsigned byte) and the number of dimensions. Each dimension follows as
a big-endian 32-bit integer. Then come the values in C order. Byte offsets in messages count decompressed bytes.
"""

import gzip
import io
import math
import zlib
from pathlib import Path

import numpy as np

from compare.base.interface import Array, Batch, Refused

SIDE = 28
MOST_BYTES = 2**30
_CHUNK = 2**16
_IMAGES = "images", "idx3-ubyte", 3
_LABELS = "labels", "idx1-ubyte", 1
_UNSIGNED_BYTE = 8


def load(folder: Path) -> tuple[Batch, Batch]:
    """Return the training and the test set: images [N, 28, 28, 1] as bytes that mean 0 to 1, labels 0 to 9.

    Raises:
        Refused: a file is missing, unreadable, damaged or not MNIST; the message names it, and the byte offset.
    """
    return _part(folder, "train"), _part(folder, "t10k")


def name_expected_files() -> str:
    """Return the names of the files that `load` looks for, for messages."""
    names = [f"{part}-{kind}-{suffix}" for part in ("train", "t10k") for kind, suffix, _ in (_IMAGES, _LABELS)]
    return f"{', '.join(names)} (each with or without .gz)"


def read(path: Path, dimensions: int) -> Array:
    """Return the uint8 array of an IDX file of unsigned bytes with that many dimensions.

    Memory grows with the data that are really there, never with what the header claims, up to 1 GiB.

    Raises:
        Refused: not such a file, truncated, with trailing bytes, larger than 1 GiB, or a damaged gzip stream.
    """
    try:
        # By content, not by name: browsers decompress downloads and keep the name.
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if compressed else path.open("rb") as stream:
            return _parse(path, stream, dimensions)
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error}") from error


def _part(folder: Path, part: str) -> Batch:
    pixels_path, labels_path = _find(folder, part, *_IMAGES[:2]), _find(folder, part, *_LABELS[:2])
    pixels = read(pixels_path, _IMAGES[2])
    count, height, width = pixels.shape
    if (height, width) != (SIDE, SIDE):
        raise Refused(f"{pixels_path}: images of {height}x{width} pixels at offset 8; allowed: {SIDE}x{SIDE}")
    labels = read(labels_path, _LABELS[2])
    if len(labels) != count:
        raise Refused(
            f"{labels_path}: {len(labels)} labels at offset 4, but {pixels_path} has {count} images; allowed: as many"
        )
    bad = np.flatnonzero(labels > 9)
    if len(bad):
        raise Refused(f"{labels_path}: label {labels[bad[0]]} at offset {8 + bad[0]}; allowed: 0 to 9")
    levels = np.arange(256, dtype=np.float32)[:, np.newaxis] / np.float32(255)
    return Batch(pixels[..., np.newaxis], labels.astype(np.int32), levels)


def _find(folder: Path, part: str, kind: str, suffix: str) -> Path:
    names = [f"{part}-{kind}{joint}{suffix}{ending}" for joint in "-." for ending in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise Refused(f"{folder / names[0]}: no such file; expected in {folder}: {name_expected_files()}")


def _parse(path: Path, stream: io.BufferedIOBase, dimensions: int) -> Array:
    magic = bytes(_take(path, stream, 0, 4))
    if magic[:2] != b"\0\0":
        raise Refused(f"{path}: bytes {magic[:2].hex()} at offset 0 are neither IDX (0000) nor gzip (1f8b)")
    if magic[2] != _UNSIGNED_BYTE:
        raise Refused(f"{path}: IDX type {magic[2]:#04x} at offset 2; allowed: 0x08, unsigned bytes")
    if magic[3] != dimensions:
        raise Refused(f"{path}: {magic[3]} dimensions at offset 3; allowed: {dimensions}")
    start = 4 + 4 * dimensions
    shape = [int(size) for size in np.frombuffer(_take(path, stream, 4, 4 * dimensions), ">u4")]
    count = math.prod(shape)
    if count == 0:
        raise Refused(f"{path}: dimension 0 at offset {4 + 4 * shape.index(0)}; allowed: 1 and more")
    if count > MOST_BYTES:
        raise Refused(f"{path}: dimensions {shape} at offset 4 mean {count} bytes; allowed: up to {MOST_BYTES}")
    values = _take(path, stream, start, count)
    # This last read also makes gzip compare its checksum.
    if _chunk(path, stream, start + count, 1):
        raise Refused(f"{path}: data go on at offset {start + count}, where dimensions {shape} mean their end")
    return np.frombuffer(values, np.uint8).reshape(shape)


def _take(path: Path, stream: io.BufferedIOBase, offset: int, count: int) -> bytearray:
    values = bytearray()
    while len(values) < count:
        chunk = _chunk(path, stream, offset + len(values), min(_CHUNK, count - len(values)))
        if not chunk:
            raise Refused(
                f"{path}: truncated, the data end at offset {offset + len(values)}: "
                f"expected {offset + count} bytes, found {offset + len(values)}"
            )
        values += chunk
    return values


def _chunk(path: Path, stream: io.BufferedIOBase, offset: int, count: int) -> bytes:
    try:
        return stream.read(count)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Refused(f"{path}: damaged gzip data after offset {offset} of the decompressed data: {error}") from error
