"""The data set of a workload in NumPy, the same bytes for every backend.

Images are NHWC. Labels are int32, one for each image or pixel. A source of bytes gives bytes and their levels.
Synthetic images are float32 from a normal distribution.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from compare.base.interface import Array, Batch, Refused
from compare.base.workloads import Workload

_NATIVE = {"digits": (8, 8, 1), "mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
_ORIGINAL = (*_NATIVE, "photographs")
_SYNTHETIC_WITHOUT_FOLDER = ("cifar10", "photographs")
_SYNTHETIC = {"synthetic": "images", "shapes": "shapes"}
_BATCHES = 10  # of synthetic images, with two for the test: fewer if ten would not fit into memory
_BUILT_IN = {"digits": "its digits are embedded", **dict.fromkeys(_SYNTHETIC, "its images are synthetic")}


class BatchTooLarge(Refused):
    """A batch has more images than there are to train on."""


@dataclass(frozen=True)
class Dataset:
    """A training and a test set, and `source`, a sentence for the report that says where they came from.

    The training set may have several views of its N labelled images, one for each epoch. Its images are then
    [views * N, H, W, C], with the whole first view before the second.
    """

    train: Batch
    test: Batch
    source: str

    @classmethod
    def make_later(cls, make: Callable[[], tuple[Batch, Batch]], source: str) -> "Dataset":
        """Return a dataset that makes its sets at the first access. That takes seconds for large images."""
        dataset = cls.__new__(cls)
        vars(dataset).update(_make=make, source=source)
        return dataset

    @cached_property
    def sha256(self) -> str:
        """The digest of values and labels: that of bytes is that of the values they stand for."""
        return digest(self.train.values(), self.train.labels, self.test.values(), self.test.labels)

    def __getattr__(self, name: str) -> Batch:
        if name not in ("train", "test"):
            raise AttributeError(name)
        train, test = vars(self).pop("_make")()
        vars(self).update(train=train, test=test)
        return vars(self)[name]


def load(
    workload: Workload,
    *,
    folder: str | None,
    seed: int,
    batch_size: int,
    image_size: int | None = None,
    epochs: int = 1,
    images: int | None = None,
) -> Dataset:
    """Return the data that `workload` trains and is tested on.

    Data are synthetic for workloads that name no dataset, and for CIFAR-10 and photographs without a folder. They are
    also synthetic if the workload's images have another size than the dataset's. A folder is then not read, and
    `source` says so.

    Args:
        workload: its `data` names the dataset: `digits`, `mnist`, `cifar10` or `photographs`, or `synthetic` or
            `shapes`, which has a class for every pixel.
        folder: where the dataset lies in its original format; None for none.
        seed: the run's seed; fixes the digits' split, the photographs' split and crops, and the synthetic images.
        batch_size: images per step; the training set must fill at least one batch.
        image_size: height and width in pixels in place of the workload's.
        epochs: views of the training images, where each epoch has its own: photographs.
        images: how many of a folder's photographs are trained on, and of those to test on the same share; None: all.

    Raises:
        BatchTooLarge: the training set does not fill a batch.
        Refused: unknown dataset, folder missing or not wanted, file missing or damaged (named, with the byte offset),
            `batch_size`, `image_size` or `images` outside what is possible.
    """
    _check(workload, folder, batch_size, image_size, images)
    if is_made_for_batch(workload, folder, image_size):
        image = workload.model.resized(image_size).image
        train, test = _split(workload, image, batch_size)
        unread = "" if folder is None else f", {folder} not read: its images are of another size"
        return synthesise(workload, image, seed=seed, train=train, test=test, remark=unread)
    try:
        dataset = _original(workload, folder, seed, epochs, images)
    except OSError as error:
        raise Refused(f"--data {folder}: cannot be read: {error}") from error
    count = len(dataset.train.labels)
    if batch_size > count:
        raise BatchTooLarge(
            f"batch size {batch_size} is larger than the training set, {dataset.source}; allowed: 2 to {count}"
        )
    return dataset


def load_for_other_machines(
    workload: Workload, *, folder: str | None, seed: int, batch_size: int, epochs: int = 1, images: int | None = None
) -> Dataset:
    """Return the dataset of a plan that other machines execute: empty if it lies in a folder or depends on the batch.

    The other machines look for the folder.

    Raises:
        Refused: as `load`, but for a folder and what is in it.
    """
    if folder is None and not is_made_for_batch(workload, None):
        return load(workload, folder=None, seed=seed, batch_size=batch_size, epochs=epochs, images=images)
    _check(workload, folder, batch_size, None, images)
    if is_made_for_batch(workload, folder):
        from compare.data import synthetic

        synthetic.check(workload.model.image, sum(_split(workload, workload.model.image, batch_size)))
    return make_empty("not here")


def make_empty(source: str) -> Dataset:
    """Return a dataset without an image, for a plan that trains on none."""
    nothing = Batch(np.zeros((0, 1, 1, 1), np.float32), np.zeros(0, np.int32))
    return Dataset(nothing, nothing, source)


def is_made_for_batch(workload: Workload, folder: str | None, image_size: int | None = None) -> bool:
    """Tell whether `load` makes synthetic images for a batch. Otherwise the batch size does not change the data."""
    image = workload.model.resized(image_size).image
    native = {**_NATIVE, "photographs": workload.model.image}.get(workload.data)
    return image != native or (workload.data in _SYNTHETIC_WITHOUT_FOLDER and folder is None)


def synthesise(
    workload: Workload, image: tuple[int, int, int], *, seed: int, train: int, test: int, remark: str = ""
) -> Dataset:
    """Return `train` and `test` synthetic images of that shape, with labels as `workload` has them.

    `remark` is added to the source.

    Raises:
        Refused: they would need too much memory.
    """
    from compare.data import segmentation, synthetic, targets

    if workload.task is not None or workload.model.inputs:
        parts = targets.make(workload, image, seed=seed, train=train, test=test)
        inputs = [f"{each.name} {'x'.join(map(str, each.shape)) or 'number'}".strip() for each in workload.model.inputs]
        what = ", ".join(inputs) or f"{'x'.join(map(str, image))} images"
        return Dataset(*parts, f"synthetic {what}, seed {seed} ({_counts(*parts)}){remark}")
    synthetic.check(image, train + test)
    make = segmentation.make if workload.data == "shapes" else synthetic.make
    later = partial(make, image, classes=workload.model.classes, seed=seed, train=train, test=test)
    kind, shape = _SYNTHETIC.get(workload.data, "images"), "x".join(str(size) for size in image)
    counts = f"{train:,} train, {test:,} test"
    return Dataset.make_later(later, f"synthetic {shape} {kind}, seed {seed} ({counts}){remark}")


def digest(*arrays: Array) -> str:
    """Return the SHA-256, in hexadecimal, over the dtype, shape and C-ordered bytes of the arrays in their order."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape};".encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _check(workload: Workload, folder: str | None, batch_size: int, image_size: int | None, images: int | None) -> None:
    """Check the arguments of `load` before anything is read."""
    if workload.data not in (*_ORIGINAL, *_SYNTHETIC):
        allowed = ", ".join((*_ORIGINAL, *_SYNTHETIC))
        raise Refused(f"workload {workload.name}: unknown data {workload.data!r}; allowed: {allowed}")
    if batch_size < 1:
        raise Refused(f"batch size {batch_size}: allowed are 1 and more")
    if image_size is not None and image_size < 1:
        raise Refused(f"image size {image_size}: allowed are 1 pixel and more")
    if folder is not None and workload.data in _BUILT_IN:
        raise Refused(
            f"--data {folder}: workload {workload.name} takes no folder, {_BUILT_IN[workload.data]}; leave --data out"
        )
    if images is not None and (workload.data != "photographs" or folder is None):
        raise Refused(f"--images {images}: allowed with --data DIR of photographs, of which so many are drawn")
    if images is not None and images < 1:
        raise Refused(f"--images {images}: allowed are 1 and more")


def _original(workload: Workload, folder: str | None, seed: int, epochs: int, images: int | None) -> Dataset:
    # Loaders are imported where they are used: a child process pays only for its own dataset.
    if workload.data == "digits":
        from compare.data import digits

        train, test = digits.load(seed)
        return Dataset(train, test, f"scikit-learn digits ({_counts(train, test)})")
    if workload.data == "mnist":
        from compare.data import idx

        if folder is None:
            raise Refused(f"workload {workload.name} needs --data DIR, a folder with {idx.name_expected_files()}")
        train, test = idx.load(_folder(folder))
        return Dataset(train, test, f"MNIST IDX files in {folder} ({_counts(train, test)})")
    assert folder is not None
    if workload.data == "photographs":
        return _photographs(workload, folder, seed, epochs, images)
    from compare.data import cifar

    train, test = cifar.load(_folder(folder))
    return Dataset(train, test, f"CIFAR-10 binary files in {folder} ({_counts(train, test)})")


def _photographs(workload: Workload, folder: str, seed: int, epochs: int, images: int | None) -> Dataset:
    from compare.data import folders

    model = workload.model
    train, test = folders.load(
        _folder(folder), model.image, classes=model.classes, seed=seed, epochs=epochs, images=images
    )
    classes = f"{len(np.unique(train.labels)):,} of {model.classes:,} classes"
    drawn = "" if images is None else ", drawn by the seed"
    views = "" if epochs == 1 else f", cropped afresh for each of {epochs:,} epochs"
    return Dataset(train, test, f"photographs in {folder} ({classes}; {_counts(train, test)}{drawn}{views})")


def _split(workload: Workload, image: tuple[int, int, int], batch_size: int) -> tuple[int, int]:
    """Return how many training and test images are made for a batch."""
    from compare.data import synthetic, targets

    most = synthetic.count_most_images((1, 1, targets.count_values(workload, image)))
    batches = max(2, min(_BATCHES, most // batch_size))
    test = 2 if batches == _BATCHES else 1
    return (batches - test) * batch_size, test * batch_size


def _folder(name: str) -> Path:
    folder = Path(name)
    if not folder.is_dir():
        why = "no folder" if folder.exists() else "no such folder"
        raise Refused(f"--data {name}: {why}; allowed: the folder with the files of the data set")
    return folder


def _counts(train: Batch, test: Batch) -> str:
    return f"{len(train.labels):,} train, {len(test.labels):,} test"
