"""Folders of photographs: real JPEG and PNG files, made here."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compare.base import workloads
from compare.base.interface import Batch
from compare.data import folders
from compare.data.datasets import Dataset

RESNET = workloads.get("resnet50")
IMAGE = (16, 16, 3)
COLOURS = {"ape": (200, 30, 30), "bee": (30, 200, 30), "cat": (30, 30, 200)}
COUNTS = {"ape": 6, "bee": 11, "cat": 2}


def picture(colour: tuple[int, int, int], number: int, width: int = 40, height: int = 30) -> Image.Image:
    """Return a photograph of noise around a colour."""
    noise = np.random.default_rng([number, *colour]).integers(-25, 25, (height, width, 3))
    return Image.fromarray((np.array(colour) + noise).astype(np.uint8))


def fill(folder: Path, counts: dict[str, int]) -> None:
    """Make a folder a class, with JPEG and PNG files of several spellings in turn."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            suffix = ("jpg", "JPEG", "png", "jpeg")[number % 4]
            picture(COLOURS[name], number).save(folder / name / f"{number:02}.{suffix}")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Return DIR/CLASS/*, 19 images of three classes."""
    fill(tmp_path / "photographs", COUNTS)
    return tmp_path / "photographs"


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """Return DIR/train/CLASS/* and DIR/val/CLASS/*."""
    fill(tmp_path / "parted" / "train", COUNTS)
    fill(tmp_path / "parted" / "val", {"ape": 1, "bee": 2, "cat": 1})
    return tmp_path / "parted"


def load_batches(folder: Path, *, seed: int = 0, epochs: int = 1, **options: int | None) -> tuple[Batch, Batch]:
    return folders.load(folder, IMAGE, classes=10, seed=seed, epochs=epochs, **options)


def dataset(folder: Path, **options: int) -> Dataset:
    return Dataset(*load_batches(folder, **options), "")


def names(folder: Path, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return CLASS/NAME of the training and of the test files."""
    parts = folders.list_files(folder, classes=10, seed=seed)
    train, test = ([f"{path.parent.name}/{path.name}" for path in part.paths] for part in parts)
    return train, test
