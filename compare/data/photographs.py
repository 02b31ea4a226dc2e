"""One photograph: its file decoded, a crop of it chosen, and the crop scaled to a model's size."""

import io
import math
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from compare.base.interface import Array, Refused

FORMATS = ("JPEG", "PNG")
MOST_BYTES = 2**28
MOST_PIXELS = 10**8
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
ATTEMPTS = 10
TEST_PART = 224 / 256


def read(path: Path) -> Image.Image:
    """Return the image [H, W] of a JPEG or PNG file (by content, not by name) as 8-bit RGB.

    Grey values fill all three channels. 16-bit values keep the upper 8 bits. Palettes are looked up, CMYK is inverted
    without a colour profile, and transparency is dropped without blending. Orientation tags are ignored. Except for
    16 bits, torchvision's `ImageFolder` does the same. PNG's checksums are checked. JPEG has none, so damaged
    compressed data show only as other pixels.

    Raises:
        Refused: the file is no such image, is truncated or damaged, cannot be read, has more than 256 MiB or, before
            they are decoded, more than 100 million pixels. The message names it.
    """
    content = _content(path)
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            size = image.size
            if math.prod(size) <= MOST_PIXELS:
                image.verify()  # PNG's checksums, at which decoding does not look
        if math.prod(size) <= MOST_PIXELS:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                return _rgb(image)
    except UnidentifiedImageError:
        raise Refused(f"{path}: no JPEG or PNG image") from None
    except Image.DecompressionBombError:
        raise Refused(f"{path}: too many pixels; allowed: {MOST_PIXELS} in all") from None
    except Exception as error:  # what Pillow raises depends on where the damage leads it
        raise Refused(f"{path}: damaged: {error}") from error
    raise Refused(f"{path}: {size[0]} x {size[1]} pixels; allowed: {MOST_PIXELS} in all")


def draw_training_crop(image: Image.Image, side: int, random: np.random.Generator) -> Array:
    """Return a random crop of an RGB image, scaled to [side, side, 3] uint8 and flipped left to right half the time.

    `random_box` chooses the crop. Scaling is bilinear with antialiasing and uses the crop's own pixels only. Source:
    torchvision's RandomResizedCrop and RandomHorizontalFlip (Szegedy et al. 2015).
    """
    crop = image.crop(draw_box(*image.size, random)).resize((side, side), Image.Resampling.BILINEAR)
    pixels = np.asarray(crop)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def test_crop(image: Image.Image, side: int) -> Array:
    """Return the middle of an RGB image, scaled to [side, side, 3] uint8: a square of 7/8 of its shorter edge.

    That is what resizing the shorter edge to 256 and cropping 224 leaves, in one bilinear step with antialiasing.
    """
    width, height = image.size
    edge = TEST_PART * min(width, height)
    left, top = (width - edge) / 2, (height - edge) / 2
    box = left, top, left + edge, top + edge
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box))


def draw_box(width: int, height: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Return a random crop (left, top, right, bottom) in whole pixels, as torchvision's RandomResizedCrop draws it.

    Its area is uniform in 0.08 to 1 of the image. The logarithm of width by height is uniform between those of 3/4 and
    4/3. The place is uniform. A crop that does not fit is drawn again. After ten draws, the crop is the largest allowed
    one in the middle.
    """
    for _ in range(ATTEMPTS):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(random.integers(width - wide + 1)), int(random.integers(height - high + 1))
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe would never end
            raise Refused(f"{path}: no file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise Refused(f"{path}: {size} bytes; allowed: up to {MOST_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error}") from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # Pillow's own conversion would clip 16 bits, not shift them
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "transparency" in image.info:  # Pillow warns unless it becomes a channel first
        image = image.convert("RGBA")
    return image.convert("RGB")
