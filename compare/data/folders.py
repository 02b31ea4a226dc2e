"""Photographs in folders, one a class, as ImageNet is usually laid out.

DIR/train/CLASS/ and DIR/val/CLASS/ hold JPEG or PNG files. If there is only DIR/CLASS/, a fifth of each class is held
out for the test. Classes are numbered in the order of their names. Hidden files and files beside the class folders are
ignored. All other files in a class's folder must be images.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compare.base.interface import Array, Batch, Refused
from compare.data import levels, photographs, synthetic
from compare.data.seeding import make_generator

TRAIN, TEST = "train", "val"
SUFFIXES = (".jpg", ".jpeg", ".png")
HELD_OUT = 5  # one image in so many is for the test
# The usual constants of ImageNet's training images.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
_MOST_THREADS = 8  # a decoded file may take a gigabyte
_EXPECTED = "DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg, or DIR/CLASS/*.jpg (also .jpeg and .png)"

Classes = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class Files:
    """The files of one part, by class and name, and the class [N] of each."""

    paths: Sequence[Path]
    labels: Array

    @staticmethod
    def of(classes: Classes) -> "Files":
        """Return the files of classes, in the order of the classes' names."""
        paths = [path for _, paths in sorted(classes.items()) for path in paths]
        counts = [len(paths) for _, paths in sorted(classes.items())]
        return Files(paths, np.repeat(np.arange(len(counts), dtype=np.int32), counts))

    def drawn(self, count: int, part: str, seed: int) -> "Files":
        """Return `count` of them, in the same order."""
        chosen = sorted(int(index) for index in make_generator("draw", seed, part).permutation(len(self.paths))[:count])
        return Files([self.paths[index] for index in chosen], self.labels[chosen])


def load(
    folder: Path,
    image: tuple[int, int, int],
    *,
    classes: int,
    seed: int,
    epochs: int,
    images: int | None = None,
    threads: int | None = None,
) -> tuple[Batch, Batch]:
    """Return the training set, a view for each epoch (`compare.data.datasets.Dataset`), and the test set.

    Images are bytes, cropped by `photographs.training_crop` and `photographs.test_crop`. A channel's value is
    (byte / 255 - mean) / std. The crop of image i depends on (seed, epoch, i) alone. The training files that are read
    are numbered by class and name.

    Args:
        folder: DIR.
        image: (side, side, 3) of every image.
        classes: how many the model can tell apart; there may be fewer.
        seed: fixes crops, flips, what is held out and what is drawn.
        epochs: how often each training image is cropped afresh.
        images: of the training files so many are read, and of the test files the same share; None: all.
        threads: that decode; default: one a core, up to 8.

    Raises:
        Refused: no or too many classes, a class without images, a file that is no image or damaged, a link out of the
            folder, fewer training images than `images`, more than 8 GiB of images. The message names it.
    """
    train, test = list_files(folder, classes=classes, seed=seed)
    if images is not None:
        whole = len(train.paths)
        if images > whole:
            raise Refused(f"--images {images} of --data {folder} is not allowed; allowed: 1 to {whole}, all there are")
        train = train.drawn(images, TRAIN, seed)
        test = test.drawn(max(1, round(len(test.paths) * images / whole)), TEST, seed)
    _check_memory(folder, image, len(train.paths), len(test.paths), epochs)
    side, count = image[0], len(train.paths)
    training = np.empty((epochs * count, *image), np.uint8)
    testing = np.empty((len(test.paths), *image), np.uint8)

    def crop(index: int) -> None:
        photograph = photographs.read(train.paths[index])
        for epoch in range(epochs):
            random = make_generator("crop", seed, epoch, index)
            training[epoch * count + index] = photographs.draw_training_crop(photograph, side, random)

    def middle(index: int) -> None:
        testing[index] = photographs.test_crop(photographs.read(test.paths[index]), side)

    threads = threads or min(_MOST_THREADS, os.cpu_count() or 1)
    _each(crop, count, threads)
    _each(middle, len(test.paths), threads)
    table = levels.make_level_table(MEAN, STD)
    return Batch(training, train.labels, table), Batch(testing, test.labels, table)


def list_files(folder: Path, *, classes: int, seed: int) -> tuple[Files, Files]:
    """Return the files of the training and of the test set, without opening them.

    Without DIR/train and DIR/val, a fifth of each class is held out, and at least one image. Those with the smallest
    random numbers from (seed, CLASS/NAME) are held out, so adding or removing a file does not change the numbers of
    others.

    Raises:
        Refused: see `load`.
    """
    root = folder.resolve()
    if any((folder / part).is_dir() for part in (TRAIN, TEST)):
        train, test = (_classes(folder / part, root) for part in (TRAIN, TEST))
        for part, name in [(TEST, name) for name in train] + [(TRAIN, name) for name in test]:
            if name not in (train if part == TRAIN else test):
                raise Refused(f"{folder / part / name}: no such folder; {TRAIN} and {TEST} must have the same classes")
    else:
        train, test = _split(_classes(folder, root), seed)
    if len(train) > classes:
        raise Refused(f"--data {folder}: {len(train)} classes, one a folder; allowed: up to {classes}, the model's")
    return Files.of(train), Files.of(test)


def _classes(folder: Path, root: Path) -> Classes:
    if not folder.is_dir():
        raise Refused(f"{folder}: no such folder; expected: {_EXPECTED}")
    if folder.is_symlink():
        _check_link(folder, root)
    found = {entry.name: _images(entry, root) for entry in _entries(folder, root) if entry.is_dir()}
    if not found:
        raise Refused(f"{folder}: no folder of a class in it; expected: {_EXPECTED}")
    return found


def _images(folder: Path, root: Path) -> Sequence[Path]:
    entries = _entries(folder, root)
    for entry in entries:
        if entry.suffix.lower() not in SUFFIXES:
            raise Refused(f"{entry}: no image; allowed in a class's folder: {', '.join(SUFFIXES)}")
    if not entries:
        raise Refused(f"{folder}: a class without images; expected: {_EXPECTED}")
    return entries


def _entries(folder: Path, root: Path) -> list[Path]:
    """Return the entries of a folder by name, and refuse links out of `root`."""
    entries = sorted((entry for entry in folder.iterdir() if not entry.name.startswith(".")), key=lambda e: e.name)
    for entry in entries:
        if entry.is_symlink():
            _check_link(entry, root)
    return entries


def _check_link(entry: Path, root: Path) -> None:
    try:
        end = entry.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop, before Python 3.13
        raise Refused(f"{entry}: a link that leads nowhere: {error}") from error
    if not end.is_relative_to(root):
        raise Refused(f"{entry}: a link out of the folder, to {end}; allowed: links within {root}")


def _split(classes: Classes, seed: int) -> tuple[Classes, Classes]:
    train, test = dict[str, Sequence[Path]](), dict[str, Sequence[Path]]()
    for name, paths in classes.items():
        if len(paths) < 2:
            raise Refused(f"{paths[0].parent}: 1 image; allowed: 2 and more, for one is held out for the test")
        drawn = sorted(
            paths, key=lambda path: make_generator("hold out", seed, f"{path.parent.name}/{path.name}").random()
        )
        held = set(drawn[: max(1, len(paths) // HELD_OUT)])
        train[name] = [path for path in paths if path not in held]
        test[name] = [path for path in paths if path in held]
    return train, test


def _check_memory(folder: Path, image: tuple[int, int, int], train: int, test: int, epochs: int) -> None:
    count, most = epochs * train + test, synthetic.count_most_images(image)
    if count > most:
        crops = f"{train} training images" + (f", cropped afresh for each of {epochs} epochs," if epochs > 1 else "")
        gib = count * 4 * int(np.prod(image)) / 2**30
        raise Refused(
            f"--data {folder}: {crops} and {test} test images make {count} of {gib:.1f} GiB; allowed: "
            f"{most} of {synthetic.MOST_BYTES / 2**30:g} GiB, by fewer epochs or by --images N, of which so many are "
            "then trained on"
        )


def _each(work: Callable[[int], None], count: int, threads: int) -> None:
    """Do the work of every index. If several fail, raise the error of the lowest one."""
    # Filters hold for the whole process. `photographs` refuses what Pillow warns of, or it is harmless.
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.filterwarnings("ignore", module=r"PIL\b")
        for _ in pool.map(work, range(count)):
            pass
