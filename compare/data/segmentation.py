"""Synthetic images with a class for every pixel: discs and boxes of coloured classes, in noise."""

import numpy as np

from compare.base.interface import Array, Batch
from compare.data import synthetic
from compare.data.seeding import make_generator

_MOST_OBJECTS = 6
_SMALLEST, _LARGEST = 1 / 12, 1 / 3  # an object's half width, of the image's
_SIGNAL = 1.0


def make(image: tuple[int, int, int], *, classes: int, seed: int, train: int, test: int) -> tuple[Batch, Batch]:
    """Return a training and a test set of `train` and `test` images [N, H, W, C], labels [N, H, W] in 0 to classes-1.

    One to six objects lie on the background, class 0, each a disc or a box of a random other class, later ones over
    earlier ones. A pixel is the colour of its class, with a root mean square of 1, plus standard normal noise. So one
    pixel does not show its class, but its neighbours do. The arguments fix everything. Training and test images share
    only the colours.

    Raises:
        Refused: as `compare.data.synthetic.make`.
    """
    synthetic.check(image, train + test)
    colours = make_generator("shapes", seed, "colours").standard_normal((classes, image[2]), np.float32)
    colours *= np.float32(_SIGNAL) / np.sqrt(np.mean(colours**2, axis=1, keepdims=True))
    return _draw(image, colours, "train", seed, train), _draw(image, colours, "test", seed, test)


def _draw(image: tuple[int, int, int], colours: Array, part: str, seed: int, count: int) -> Batch:
    random = make_generator("shapes", seed, part)
    labels = np.zeros((count, *image[:2]), np.int32)
    for label in labels:
        for _ in range(random.integers(1, _MOST_OBJECTS + 1)):
            label[_object(image, random)] = random.integers(1, len(colours))
    images = random.standard_normal((count, *image), np.float32)
    for pixels, label in zip(images, labels, strict=True):  # image by image: no second array of the images' size
        pixels += colours[label]
    return Batch(images, labels)


def _object(image: tuple[int, int, int], random: np.random.Generator) -> Array:
    """Return where [H, W] a disc or a box lies, its middle and its half widths drawn at random."""
    height, width, _ = image
    middle, half = random.uniform(0, 1, 2), random.uniform(_SMALLEST, _LARGEST, 2)
    y = ((np.arange(height) + 0.5) / height - middle[0]) / half[0]
    x = ((np.arange(width) + 0.5) / width - middle[1]) / half[1]
    if random.integers(2):
        return y[:, None] ** 2 + x**2 <= 1
    return (np.abs(y)[:, None] <= 1) & (np.abs(x) <= 1)
