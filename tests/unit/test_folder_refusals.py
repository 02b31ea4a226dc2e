"""Folders of photographs that are refused: damaged files, links that lead out, classes that do not match."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from compare.base import workloads
from compare.base.interface import Refused
from compare.data import synthetic
from compare.data.datasets import load
from tests.unit.photo_folders import RESNET, fill, load_batches, names, picture
from tests.unit.photo_folders import flat as flat
from tests.unit.photo_folders import parted as parted


def test_a_batch_larger_than_the_folder_is_refused(flat: Path) -> None:
    with pytest.raises(Refused, match=r"batch size 16 is larger than the training set, .*15 train.*allowed: 2 to 15"):
        load(RESNET, folder=str(flat), seed=0, batch_size=16)


def test_images_that_cannot_be_drawn_are_refused(flat: Path) -> None:
    for images, why in ((0, "0: allowed are 1 and more"), (16, "16 of .* is not allowed; allowed: 1 to 15, all there")):
        with pytest.raises(Refused, match=f"--images {why}"):
            load(RESNET, folder=str(flat), seed=0, batch_size=2, images=images)
    cifar = workloads.get("cifar-cnn")
    for workload, folder in ((RESNET, None), (cifar, str(flat)), (cifar, None)):
        with pytest.raises(Refused, match="--images 4: allowed with --data DIR of photographs"):
            load(workload, folder=folder, seed=0, batch_size=2, images=4)


def jpeg(folder: Path) -> Path:
    return folder / "bee" / "00.jpg"


def cut(folder: Path) -> None:
    jpeg(folder).write_bytes(jpeg(folder).read_bytes()[:-200])


def changed(folder: Path) -> None:
    content = bytearray((folder / "bee" / "02.png").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "bee" / "02.png").write_bytes(content)


def link(target: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        outside = folder.parent / "outside"
        outside.mkdir()
        picture((1, 1, 1), 0).save(outside / "0.png")
        (folder / "bee" / "linked.png").symlink_to(target)

    return make


def outside_class(folder: Path) -> None:
    fill(folder.parent / "elsewhere", {"cat": 3})
    (folder / "dog").symlink_to(folder.parent / "elsewhere" / "cat")


def bomb(folder: Path) -> None:
    Image.new("1", (10_001, 10_000)).save(folder / "bee" / "02.png")


def greater_bomb(folder: Path) -> None:
    Image.new("1", (20_000, 10_000)).save(folder / "bee" / "02.png")


def sparse(folder: Path) -> None:
    with jpeg(folder).open("wb") as file:
        file.truncate(2**28 + 1)  # takes no room on the disk


def nested(folder: Path) -> None:
    (folder / "bee" / "queen").mkdir()


def only_one(folder: Path) -> None:
    (folder / "cat" / "00.jpg").unlink()


def without(folder: Path) -> None:
    for path in (folder / "cat").iterdir():
        path.unlink()


def pipe(folder: Path) -> None:
    jpeg(folder).unlink()
    os.mkfifo(jpeg(folder))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated JPEG": (cut, r"/bee/00\.jpg: damaged: .*truncated"),
    "damaged PNG": (changed, r"/bee/02\.png: damaged: "),
    "empty file": (lambda folder: jpeg(folder).write_bytes(b""), r"/bee/00\.jpg: no JPEG or PNG image"),
    "text": (lambda folder: jpeg(folder).write_text("not an image"), r"/bee/00\.jpg: no JPEG or PNG image"),
    "GIF": (lambda folder: picture((9, 9, 9), 0).save(jpeg(folder), "GIF"), r"/bee/00\.jpg: no JPEG or PNG image"),
    "other name": (
        lambda folder: (folder / "bee" / "notes.txt").write_text("bees"),
        r"/bee/notes\.txt: no image; allowed in a class's folder: \.jpg, \.jpeg, \.png",
    ),
    "folder in a class": (nested, r"/bee/queen: no image"),
    "class without images": (without, r"/cat: a class without images"),
    "class of one image": (only_one, r"/cat: 1 image; allowed: 2 and more"),
    "link out": (link("../../outside/0.png"), r"/bee/linked\.png: a link out of the folder, to .*/outside/0\.png"),
    "link to nothing": (link("nothing.png"), r"/bee/linked\.png: a link that leads nowhere"),
    "link to itself": (link("linked.png"), r"/bee/linked\.png: a link that leads nowhere"),
    "class elsewhere": (outside_class, r"/dog: a link out of the folder"),
    "many pixels": (bomb, r"/bee/02\.png: 10001 x 10000 pixels; allowed: 100000000 in all"),
    "very many pixels": (greater_bomb, r"/bee/02\.png: .*pixels"),
    "large file": (sparse, r"/bee/00\.jpg: 268435457 bytes; allowed: up to 268435456"),
    "pipe": (pipe, r"/bee/00\.jpg: no file"),
    "one part only": (
        lambda folder: (folder / "cat").rename(folder / "train"),
        r"/train: no folder of a class|/val: no",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_bad_is_named(flat: Path, kind: str) -> None:
    spoil, message = BAD[kind]
    load_batches(flat)
    spoil(flat)
    with pytest.raises(Refused, match=message):
        load_batches(flat)


def test_the_first_bad_file_is_named_whatever_the_threads(flat: Path) -> None:
    for name in ("bee", "ape", "cat"):
        for path in (flat / name).iterdir():
            path.write_bytes(b"no")
    first = names(flat)[0][0]
    for threads in (1, 2, 7):
        with pytest.raises(Refused, match=rf"/{first}: no JPEG"):
            load_batches(flat, threads=threads)


def test_a_part_that_lies_elsewhere_is_refused_and_a_linked_folder_is_not(parted: Path) -> None:
    linked = parted.parent / "linked"
    linked.symlink_to(parted)
    assert len(load_batches(linked)[0].labels) == 19
    (parted / "val").rename(parted.parent / "val")
    (parted / "val").symlink_to("../val")
    with pytest.raises(Refused, match=r"/parted/val: a link out of the folder"):
        load_batches(parted)


@pytest.mark.parametrize(("part", "other"), [("train", "val"), ("val", "train")])
def test_both_parts_have_the_same_classes(parted: Path, part: str, other: str) -> None:
    (parted / part / "dog").mkdir()
    picture((5, 5, 5), 0).save(parted / part / "dog" / "0.png")
    with pytest.raises(Refused, match=rf"/{other}/dog: no such folder; train and val must have the same classes"):
        load_batches(parted)


@pytest.mark.parametrize(("folder", "said"), [("nowhere", "no such folder"), ("file", "no folder")])
def test_what_is_no_folder_is_refused(tmp_path: Path, folder: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=rf"--data .*/{folder}: {said}"):
        load(RESNET, folder=str(tmp_path / folder), seed=0, batch_size=2)


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    picture((1, 2, 3), 0).save(tmp_path / "0.png")
    with pytest.raises(Refused, match=r"no folder of a class in it; expected: DIR/train/CLASS"):
        load_batches(tmp_path)


def test_more_classes_than_the_models_are_refused(flat: Path) -> None:
    few = replace(RESNET, model=replace(RESNET.model, classes=2))
    with pytest.raises(Refused, match=r"3 classes, one a folder; allowed: up to 2, the model's"):
        load(few, folder=str(flat), seed=0, batch_size=2)


def test_more_than_memory_is_refused_before_any_file_is_opened(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "MOST_BYTES", 2**24)  # 27 images of 224x224
    jpeg(flat).write_bytes(b"no image")
    said = r"15 training images, cropped afresh for each of 2 epochs, and 4 test images make 34 .*allowed: 27 of 0\.015"
    with pytest.raises(Refused, match=said):
        load(RESNET, folder=str(flat), seed=0, batch_size=2, epochs=2)
    with pytest.raises(Refused, match=r"00\.jpg: no JPEG"):
        load(RESNET, folder=str(flat), seed=0, batch_size=2, epochs=1)


def test_files_that_cannot_be_read_are_named(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(Refused, match=r"/ape/.*: cannot be read: .*Permission denied"):
        load_batches(flat)
