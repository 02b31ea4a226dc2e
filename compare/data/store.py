"""A dataset as one safetensors file: the parent reads every original format once, its children read this."""

from pathlib import Path

import numpy as np

# safetensors' annotations leave the path's type parameter open.
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from compare.data import Dataset, digest
from compare.interface import Array, Batch


def save(dataset: Dataset, path: Path) -> None:
    """Write a dataset's arrays."""
    arrays = {
        "train.images": dataset.train.images,
        "train.labels": dataset.train.labels,
        "test.images": dataset.test.images,
        "test.labels": dataset.test.labels,
    }
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def load(path: str) -> tuple[Batch, Batch]:
    """Return the training and the test set that `save` wrote."""
    arrays: dict[str, Array] = load_file(path)
    return (
        Batch(arrays["train.images"], arrays["train.labels"]),
        Batch(arrays["test.images"], arrays["test.labels"]),
    )


def sha256(dataset: Dataset) -> str:
    """Return the digest of all four arrays."""
    train, test = dataset.train, dataset.test
    return digest(train.images, train.labels, test.images, test.labels)
