"""The handwritten digits that scikit-learn ships: 1,797 images of 8x8 pixels, no download."""

import importlib.util
from pathlib import Path

import numpy as np

from compare.base.interface import Array, Batch, Refused
from compare.data.seeding import make_generator

TRAIN = 1437
TEST = 360
# Mean and standard deviation of all 115,008 grey values divided by 16.
MEAN, DEVIATION = 0.305, 0.376


def load(seed: int) -> tuple[Batch, Batch]:
    """Return the training and the test set: images [1437, 8, 8, 1] and [360, 8, 8, 1] as bytes.

    Grey values 0 to 16 are divided by 16, then standardised by `MEAN` and `DEVIATION`. `split(seed)` splits the sets.
    Source: `sklearn.datasets.load_digits`, the test part of UCI's handwritten digits (Alpaydin and Kaynak 1998).
    """
    table = np.loadtxt(_find_file(), np.uint8, delimiter=",")  # 64 grey values and the label of each image
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int32)
    grey = np.arange(256, dtype=np.float32)[:, np.newaxis] / np.float32(16)
    levels = (grey - np.float32(MEAN)) / np.float32(DEVIATION)
    train, test = split(seed)
    return Batch(images[train], labels[train], levels), Batch(images[test], labels[test], levels)


def split(seed: int) -> tuple[Array, Array]:
    """Return the indices [1437] of the training and [360] of the test images, a random permutation cut in two."""
    order = make_generator("split", seed).permutation(TRAIN + TEST)
    return order[:TRAIN], order[TRAIN:]


def _find_file() -> Path:
    """Return scikit-learn's file of digits. Importing scikit-learn to load it takes a second of a run's start."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise Refused("the digits come with scikit-learn, which is not installed; allowed: pip install scikit-learn")
    return Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
