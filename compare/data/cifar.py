"""CIFAR-10 in its original binary format (Krizhevsky 2009).

A file is a sequence of records of 3,073 bytes: one label byte, then 1,024 red, 1,024 green and 1,024 blue bytes, each
plane row by row.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compare.base.interface import Array, Batch, Refused
from compare.data import levels

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
SUBFOLDER = "cifar-10-batches-bin"
MOST_BYTES = 2**30
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


def load(folder: Path) -> tuple[Batch, Batch]:
    """Return the training and the test set: images [N, 32, 32, 3] as bytes, labels 0 to 9.

    A channel's value is (byte / 255 - mean) / std, with the usual constants of CIFAR-10's training images. Files lie
    in `folder` or in its sub-folder cifar-10-batches-bin, and may hold any number of records.

    Raises:
        Refused: a file is missing, unreadable, empty, not made of whole records, larger than 1 GiB, or has a label
            above 9; the message names it, and the byte offset.
    """
    if not (folder / TRAIN[0]).is_file() and (folder / SUBFOLDER).is_dir():
        folder = folder / SUBFOLDER
    return _part(folder, TRAIN), _part(folder, TEST)


def read(path: Path) -> Array:
    """Return the records [N, 3073] uint8 of one file, checked as `load` says.

    Raises:
        Refused: see `load`.
    """
    if not path.is_file():
        raise Refused(f"{path}: no such file; expected: {', '.join(TRAIN + TEST)}")
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise Refused(f"{path}: {size} bytes; allowed: up to {MOST_BYTES}")
        content = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error}") from error
    whole, rest = divmod(len(content), RECORD)
    if not content:
        raise Refused(f"{path}: empty, the data end at offset 0; allowed: 1 or more records of {RECORD} bytes")
    if rest:
        raise Refused(
            f"{path}: the record at offset {whole * RECORD} is cut off, {rest} of {RECORD} bytes; "
            f"allowed: whole records of {RECORD} bytes"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    bad = np.flatnonzero(records[:, 0] > 9)
    if len(bad):
        raise Refused(f"{path}: label {records[bad[0], 0]} at offset {bad[0] * RECORD}; allowed: 0 to 9")
    return records


def _part(folder: Path, names: Sequence[str]) -> Batch:
    files = [read(folder / name) for name in names]
    records = np.concatenate(files)
    images = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
    return Batch(images, records[:, 0].astype(np.int32), levels.make_level_table(MEAN, STD))
