"""Small MNIST files in their original format, for runs where the real ones are not at hand.

python -m benchmarks.synthetic_mnist DIR
"""

import argparse
import struct
from pathlib import Path

import numpy as np

from compare.base.interface import Batch
from compare.data import synthetic

TRAIN, TEST = 2048, 1024


def write(folder: Path) -> None:
    """Write the four files. Each image shows the waves of its class, with noise."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = synthetic.make((28, 28, 1), classes=10, seed=0, train=TRAIN, test=TEST)
    for name, batch in (("train", train), ("t10k", test)):
        _write(folder, name, batch)


def _write(folder: Path, name: str, batch: Batch) -> None:
    count, height, width, _ = batch.images.shape
    pixels = (128 + 40 * batch.images).clip(0, 255).astype(np.uint8)
    head = struct.pack(">IIII", 0x803, count, height, width)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
    labels = struct.pack(">II", 0x801, count) + batch.labels.astype(np.uint8).tobytes()
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the four files are written")
    write(parser.parse_args().folder)
