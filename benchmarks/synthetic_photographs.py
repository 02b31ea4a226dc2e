"""JPEG files in folders, one a class, for runs on photographs where real ones are not at hand.

python -m benchmarks.synthetic_photographs DIR
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from compare.base.interface import Batch
from compare.data import synthetic

TRAIN, TEST, CLASSES = 2048, 256, 10
DRAWN, SIDE = 32, 256


def write(folder: Path) -> None:
    """Write train/CLASS and val/CLASS. Each photograph shows the waves of its class, with noise."""
    train, test = synthetic.make((DRAWN, DRAWN, 3), classes=CLASSES, seed=0, train=TRAIN, test=TEST)
    for name, batch in (("train", train), ("val", test)):
        _write(folder / name, batch)


def _write(folder: Path, batch: Batch) -> None:
    for label in range(CLASSES):
        (folder / f"class{label}").mkdir(parents=True, exist_ok=True)
    pixels = (128 + 40 * batch.images).clip(0, 255).astype(np.uint8)
    for index, (image, label) in enumerate(zip(pixels, batch.labels, strict=True)):
        photograph = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        photograph.save(folder / f"class{label}" / f"{index:05}.jpg", quality=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, help="where train/CLASS and val/CLASS are written")
    write(parser.parse_args().folder)
