"""Synthetic images that a CNN can learn to classify, for where no dataset of the wanted size is at hand."""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from compare.base.interface import Array, Batch, Refused
from compare.data.seeding import make_generator

MOST_BYTES = 2**33
_FEWEST = 4  # two to train on and two to test on
_WAVES = 4
_CYCLES = 3.0
_SIGNAL = 0.3


def count_most_images(image: tuple[int, int, int]) -> int:
    """Return how many images of that shape, float32, fit into `MOST_BYTES` of host memory."""
    return MOST_BYTES // (4 * math.prod(image))


def check(image: tuple[int, int, int], count: int) -> None:
    """Refuse so many images of that shape as would need more than `MOST_BYTES` of host memory."""
    allowed = count_most_images(image)
    if allowed < _FEWEST:
        largest = MOST_BYTES // (4 * _FEWEST)
        raise Refused(f"{count} synthetic images of {image} values; allowed: images of up to {largest} values")
    if count > allowed:
        raise Refused(f"{count} synthetic images of {image} values; allowed: {allowed}, by a smaller batch or image")


def make(image: tuple[int, int, int], *, classes: int, seed: int, train: int, test: int) -> tuple[Batch, Batch]:
    """Return a training and a test set of `train` and `test` images [N, H, W, C], labels uniform in 0 to classes-1.

    An image is the template of its class plus standard normal noise. A template is a random sum of four plane waves
    with up to three cycles per image. Its root mean square is 0.3, so a CNN learns 32x32 images in a few epochs and not
    at once. The arguments fix everything. Training and test images share only the templates.

    Raises:
        Refused: the images would need more than 8 GiB of host memory.
    """
    check(image, train + test)
    parts = [(make_generator("synthetic", seed, part), count) for part, count in (("train", train), ("test", test))]
    labels = [random.integers(classes, size=count, dtype=np.int32) for random, count in parts]
    with ThreadPoolExecutor() as threads:  # NumPy lets others work while it draws, and while it computes cosines
        drawn = [threads.submit(random.standard_normal, (count, *image), np.float32) for random, count in parts]
        templates = _templates(threads, image, classes, seed, np.unique(np.concatenate(labels)))
        trained, tested = (
            Batch(_add(noise.result(), each, templates), each) for noise, each in zip(drawn, labels, strict=True)
        )
    return trained, tested


def _templates(
    threads: ThreadPoolExecutor, image: tuple[int, int, int], classes: int, seed: int, wanted: Array
) -> dict[int, Array]:
    """Return the float32 templates [H, W, C] of the `wanted` classes: of a thousand, small sets have few."""
    height, width, channels = image
    random = make_generator("synthetic", seed, "templates")
    frequency = random.uniform(-_CYCLES, _CYCLES, (2, classes, _WAVES, 1, 1, 1))
    phase = random.uniform(0, 1, (classes, _WAVES, 1, 1, channels))
    amplitude = random.normal(size=(classes, _WAVES, 1, 1, channels))
    y = ((np.arange(height) + 0.5) / height).reshape(-1, 1, 1)
    x = ((np.arange(width) + 0.5) / width).reshape(1, -1, 1)

    def template(label: int) -> Array:
        waves = np.cos(2 * np.pi * (frequency[0, label] * y + frequency[1, label] * x + phase[label]))
        found: Array = (amplitude[label] * waves).sum(axis=0)
        return (found * (_SIGNAL / np.sqrt(np.mean(found**2)))).astype(np.float32)

    return dict(zip(wanted.tolist(), threads.map(template, wanted), strict=True))


def _add(images: Array, labels: Array, templates: Mapping[int, Array]) -> Array:
    """Add to each of the images [N, H, W, C] the template of its label [N], in place, and return them."""
    # Class by class, so that no second array of the images' size is made.
    for label, template in templates.items():
        images[labels == label] += template
    return images
