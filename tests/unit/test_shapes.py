"""Synthetic images with a class for every pixel, and what is made of their labels."""

from pathlib import Path

import numpy as np
import pytest

from compare.base import workloads
from compare.base.interface import Batch, Refused
from compare.data import dataset_file, segmentation
from compare.data.datasets import digest, load
from compare.worker import training

UNET = workloads.get("unet")
IMAGE, CLASSES = (24, 32, 3), 5
# The bits themselves: a change here changes every published result.
PINNED = "41b5a2c78bcab2787636889e37ac00aaee0123eda436d92ab156611ee36c0c7c"


def draw(seed: int = 0, train: int = 40, test: int = 8) -> tuple[Batch, Batch]:
    return segmentation.make(IMAGE, classes=CLASSES, seed=seed, train=train, test=test)


def test_every_pixel_has_a_label() -> None:
    for part, count in zip(draw(), (40, 8), strict=True):
        assert part.images.shape == (count, *IMAGE)
        assert part.labels.shape == (count, 24, 32)
        assert (part.images.dtype, part.labels.dtype) == (np.float32, np.int32)
        assert set(np.unique(part.labels)) == set(range(CLASSES))


def test_the_bits_are_fixed_by_the_seed_and_pinned() -> None:
    train, test = draw()
    assert digest(train.images, train.labels, test.images, test.labels) == PINNED
    other, _ = draw(seed=1)
    assert not np.array_equal(other.labels, train.labels)


def test_a_pixel_is_its_class_s_colour_in_standard_normal_noise() -> None:
    train, test = draw(train=400, test=400)
    for label in range(CLASSES):
        colours = [part.images[part.labels == label].mean(0, dtype=np.float64) for part in (train, test)]
        np.testing.assert_allclose(colours[0], colours[1], atol=0.05)  # training and test images share them
        np.testing.assert_allclose(np.sqrt(np.mean(colours[0] ** 2)), 1, atol=0.05)
        noise = train.images[train.labels == label] - colours[0].astype(np.float32)
        np.testing.assert_allclose(noise.std(), 1, atol=0.02)
    assert not np.array_equal(train.labels, test.labels)


def test_objects_are_discs_and_boxes_on_the_background() -> None:
    train, _ = draw(train=400, test=1)
    assert 0.4 < (train.labels == 0).mean() < 0.8
    random, filled = np.random.default_rng(0), list[float]()
    for _ in range(400):
        mask = segmentation._object((96, 96, 3), random)  # one, without others over it
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        whole = min(rows[0], columns[0]) > 0 and max(rows[-1], columns[-1]) < 95
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert max(height, width) <= 64
        if whole:
            assert min(height, width) >= 15
            filled.append(float(mask.sum() / (height * width)))
    boxes = [part for part in filled if part == 1]
    assert len(filled) > 100
    assert 0.3 < len(boxes) / len(filled) < 0.7
    assert all(part == 1 or abs(part - np.pi / 4) < 0.1 for part in filled)


def test_the_workload_trains_on_them_at_every_image_size(tmp_path: Path) -> None:
    dataset = load(UNET, folder=None, seed=3, batch_size=2, image_size=9)
    assert dataset.source == "synthetic 9x9x3 shapes, seed 3 (16 train, 4 test)"
    assert dataset.train.labels.shape == (16, 9, 9)
    dataset_file.save(dataset, tmp_path / "data.safetensors")
    train, _ = dataset_file.load(str(tmp_path / "data.safetensors"))
    assert np.array_equal(train.labels, dataset.train.labels)
    (batch, *_) = training.draw_epoch_batches(train, seed=0, epoch=0, batch_size=2)
    assert batch.labels.shape == (2, 9, 9)


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(Refused, match="workload unet takes no folder, its images are synthetic"):
        load(UNET, folder="/some", seed=0, batch_size=2)
    with pytest.raises(Refused, match=r"synthetic images of \(256, 256, 3\) values; allowed: 10922"):
        load(UNET, folder=None, seed=0, batch_size=10**6)
