"""One photograph: what each mode of a file becomes, and which part of it is shown."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from compare.base.interface import Array, Refused
from compare.data import photographs
from compare.data.seeding import make_generator

SIDES = st.integers(1, 3000)


def saved(image: Image.Image, path: Path, **options: Any) -> Array:
    """Return the pixels [H, W, 3] that a saved image is read as."""
    image.save(path, **options)
    found = photographs.read(path)
    assert found.mode == "RGB"
    return np.asarray(found)


def test_grey_stands_in_all_channels(tmp_path: Path) -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    expected = np.repeat(grey[..., None], 3, axis=2)
    assert np.array_equal(saved(Image.fromarray(grey), tmp_path / "8.png"), expected)
    assert np.array_equal(saved(Image.fromarray(grey.astype(np.uint16) * 256 + 255), tmp_path / "16.png"), expected)
    black = saved(Image.fromarray(grey >= 128), tmp_path / "1.png")
    assert np.array_equal(black, np.where(expected >= 128, 255, 0))
    assert np.ptp(saved(Image.fromarray(grey), tmp_path / "8.jpg"), axis=2).max() == 0


def test_transparency_is_dropped(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(9, 7, 4), dtype=np.uint8)
    assert np.array_equal(saved(Image.fromarray(pixels), tmp_path / "a.png"), pixels[..., :3])
    grey = pixels[..., :2].copy()
    assert np.array_equal(saved(Image.fromarray(grey, "LA"), tmp_path / "la.png"), np.repeat(grey[..., :1], 3, axis=2))
    plain = Image.fromarray(pixels[..., :3])
    assert np.array_equal(saved(plain, tmp_path / "t.png", transparency=(1, 2, 3)), pixels[..., :3])


@pytest.mark.parametrize("transparency", [None, 2, bytes([0, 100, 255])])
def test_palettes_are_looked_up(tmp_path: Path, transparency: int | bytes | None) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([2, 0, 1])
    options = {} if transparency is None else {"transparency": transparency}
    assert saved(image, tmp_path / "p.png", **options).tolist() == [[[70, 80, 90], [10, 20, 30], [40, 50, 60]]]


def test_cmyk_is_inverted(tmp_path: Path) -> None:
    found = saved(Image.new("CMYK", (16, 16), (255, 0, 128, 0)), tmp_path / "c.jpg", quality=100)
    assert np.abs(found.astype(int) - [0, 255, 127]).max() <= 3


def test_a_png_may_be_called_jpg(tmp_path: Path) -> None:
    assert saved(Image.new("RGB", (2, 2), (1, 2, 3)), tmp_path / "0.jpg", format="PNG")[0, 0].tolist() == [1, 2, 3]


@given(width=SIDES, height=SIDES, seed=st.integers(0, 2**31))
def test_crops_lie_within_the_image_and_the_documented_bounds(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = photographs.draw_box(width, height, make_generator("crop", seed))
    wide, high = right - left, bottom - top
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    # Both edges are rounded to whole pixels.
    assert (wide - 1) / (high + 1) <= 4 / 3
    assert (wide + 1) / (high - 1 or 1e-9) >= 3 / 4
    if 3 / 4 <= width / height <= 4 / 3:
        assert (wide + 1) * (high + 1) >= 0.08 * width * height


def test_crops_have_the_documented_distribution() -> None:
    random = np.random.default_rng(0)
    boxes = np.array([photographs.draw_box(4000, 4000, random) for _ in range(4000)], float)
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    ratio = np.log(wide / high) / np.log(4 / 3)
    small = wide * high / 4000**2 < 0.7  # larger areas do not fit at every ratio
    assert abs(np.mean(ratio[small])) < 0.05
    assert abs(np.std(ratio[small]) - 1 / np.sqrt(3)) < 0.03  # uniform from -1 to 1
    areas = (wide * high / 4000**2)[small]
    assert abs(np.mean(areas) - (0.08 + 0.7) / 2) < 0.02
    assert abs(np.std(areas) - (0.7 - 0.08) / np.sqrt(12)) < 0.02
    place = boxes[:, 0][wide < 4000] / (4000 - wide)[wide < 4000]
    assert abs(np.mean(place) - 0.5) < 0.03
    assert abs(np.std(place) - 1 / np.sqrt(12)) < 0.03


@pytest.mark.parametrize(("size", "box"), [((1, 999), (0, 499, 1, 500)), ((900, 30), (430, 0, 470, 30))])
def test_an_image_that_no_draw_fits_is_cropped_in_the_middle(
    size: tuple[int, int], box: tuple[int, int, int, int]
) -> None:
    assert photographs.draw_box(*size, make_generator("crop", 0)) == box


def test_half_of_the_training_crops_are_flipped() -> None:
    ramp = np.repeat(np.arange(100, dtype=np.uint8)[None, :, None], 100, axis=0).repeat(3, axis=2)
    shown = [photographs.draw_training_crop(Image.fromarray(ramp), 8, make_generator("crop", 0, i)) for i in range(400)]
    flipped = np.mean([int(pixels[0, 0, 0]) > int(pixels[0, -1, 0]) for pixels in shown])
    assert 0.42 < flipped < 0.58
    assert {pixels.shape for pixels in shown} == {(8, 8, 3)}


def test_scaling_averages_the_pixels_of_the_crop_alone() -> None:
    checks = Image.fromarray((np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)).convert("RGB")
    assert np.abs(photographs.test_crop(checks, 4).astype(int) - 128).max() <= 2  # without antialiasing: 0 or 255
    framed = np.full((100, 100, 3), 255, np.uint8)
    left, top, right, bottom = photographs.draw_box(100, 100, make_generator("crop", 0, 1))
    assert (right - left) * (bottom - top) < 9000
    framed[top:bottom, left:right] = 0
    assert not photographs.draw_training_crop(Image.fromarray(framed), 8, make_generator("crop", 0, 1)).any()


def test_the_test_crop_is_the_middle_seven_eighths() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(256, 320, 3), dtype=np.uint8)
    assert np.array_equal(photographs.test_crop(Image.fromarray(pixels), 224), pixels[16:240, 48:272])


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3, 2)])
def test_tiny_and_narrow_images_are_shown(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (7, 8, 9))
    for pixels in (
        photographs.test_crop(image, 16),
        photographs.draw_training_crop(image, 16, make_generator("crop", 0)),
    ):
        assert np.array_equal(pixels, np.broadcast_to([7, 8, 9], (16, 16, 3)))


def test_damage_within_a_png_never_shows_as_other_pixels(tmp_path: Path) -> None:
    path = tmp_path / "0.png"
    pixels = saved(Image.fromarray(np.random.default_rng(0).integers(256, size=(5, 4, 3), dtype=np.uint8)), path)
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        try:
            assert np.array_equal(np.asarray(photographs.read(path)), pixels)
        except Refused:
            refused += 1
    assert refused > len(whole) - 13  # all but the chunk that ends the file


@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["baseline", "progressive"])
def test_a_jpeg_cut_off_anywhere_is_refused(tmp_path: Path, options: dict[str, bool]) -> None:
    path = tmp_path / "0.jpg"
    saved(Image.fromarray(np.random.default_rng(0).integers(256, size=(15, 20, 3), dtype=np.uint8)), path, **options)
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(Refused, match=r"/0\.jpg: "):
            photographs.read(path)
