"""The handwritten digits that scikit-learn ships: 1,797 images of 8x8 pixels, no download."""

from typing import Any, cast

import numpy as np

from compare.base.interface import Array, Batch
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
    # scikit-learn has no type stubs, so its two arrays get their types below.
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    loaded = cast(Any, load_digits(return_X_y=True))
    images = np.asarray(loaded[0], np.uint8).reshape(-1, 8, 8, 1)
    grey = np.arange(256, dtype=np.float32)[:, np.newaxis] / np.float32(16)
    levels = (grey - np.float32(MEAN)) / np.float32(DEVIATION)
    labels = np.asarray(loaded[1], np.int32)
    train, test = split(seed)
    return Batch(images[train], labels[train], levels), Batch(images[test], labels[test], levels)


def split(seed: int) -> tuple[Array, Array]:
    """Return the indices [1437] of the training and [360] of the test images, a random permutation cut in two."""
    order = make_generator("split", seed).permutation(TRAIN + TEST)
    return order[:TRAIN], order[TRAIN:]
