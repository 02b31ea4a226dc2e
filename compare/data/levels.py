"""What a byte of a pixel becomes: each channel standardised by its data set's mean and standard deviation."""

from collections.abc import Sequence

import numpy as np

from compare.base.interface import Array


def table(mean: Sequence[float], std: Sequence[float]) -> Array:
    """Return (byte / 255 - mean) / std for every byte and channel, [256, C] float32.

    A byte has 256 values: looked up, each is rounded once from float64, and no float64 images are ever made.
    """
    return ((np.arange(256)[:, np.newaxis] / 255 - np.asarray(mean)) / np.asarray(std)).astype(np.float32)
