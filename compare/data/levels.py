"""The values that pixels' bytes stand for: channels standardised by their data set's mean and standard deviation."""

from collections.abc import Sequence

import numpy as np

from compare.base.interface import Array


def make_level_table(mean: Sequence[float], std: Sequence[float]) -> Array:
    """Return (byte / 255 - mean) / std for every byte and channel, [256, C] float32.

    A lookup rounds each of a byte's 256 values once from float64, and needs no float64 images.
    """
    return ((np.arange(256)[:, np.newaxis] / 255 - np.asarray(mean)) / np.asarray(std)).astype(np.float32)
