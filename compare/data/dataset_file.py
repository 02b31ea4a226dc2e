"""A dataset as one safetensors file: the parent reads every original format once, its children read this."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compare.base import tensors
from compare.base.interface import Batch
from compare.data.datasets import Dataset


def save(dataset: Dataset, path: Path, *, digests: bool = False) -> None:
    """Write a dataset's arrays, as `compare.base.tensors.save` does. If it `digests`, compute `sha256` meanwhile."""
    arrays = {
        f"{part}.{name}": array
        for part, batch in (("train", dataset.train), ("test", dataset.test))
        for name, array in vars(batch).items()
        if array is not None
    }
    with ThreadPoolExecutor(1) as threads:
        if digests:
            threads.submit(lambda: dataset.sha256)  # the dataset keeps it
        tensors.save(arrays, path)


def load(path: str) -> tuple[Batch, Batch]:
    """Map the training and the test set that `save` wrote: all children share the memory that they take."""
    arrays = tensors.load(Path(path), writable=True)  # as torch wants all memory to be
    train, test = (
        Batch(arrays[f"{part}.images"], arrays[f"{part}.labels"], arrays.get(f"{part}.levels"))
        for part in ("train", "test")
    )
    return train, test
