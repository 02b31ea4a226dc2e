"""Photographs in folders: real JPEG and PNG files, made here, whole and damaged."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compare import training, workloads
from compare.data import Dataset, batches, digest, folders, load, store, synthetic
from compare.interface import Array, Batch, Refused, RunSpec
from tests.unit.stage import Stage

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


def made(folder: Path, *, seed: int = 0, epochs: int = 1, threads: int | None = None) -> tuple[Batch, Batch]:
    return folders.load(folder, IMAGE, classes=10, seed=seed, epochs=epochs, threads=threads)


def dataset(folder: Path, **options: int) -> Dataset:
    return Dataset(*made(folder, **options), "")


def names(folder: Path, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return CLASS/NAME of the training and of the test files."""
    parts = folders.listed(folder, classes=10, seed=seed)
    train, test = ([f"{path.parent.name}/{path.name}" for path in part.paths] for part in parts)
    return train, test


def test_imagenets_layout_is_read_class_by_class(parted: Path) -> None:
    train, test = made(parted)
    assert train.labels.tolist() == [0] * 6 + [1] * 11 + [2] * 2
    assert test.labels.tolist() == [0, 1, 1, 2]
    assert (train.images.shape, test.images.shape) == ((19, *IMAGE), (4, *IMAGE))
    assert (train.images.dtype, train.values().dtype, train.labels.dtype) == (np.uint8, np.float32, np.int32)
    for part in (train, test):
        shown = part.values().mean(axis=(1, 2)) * folders.STD + folders.MEAN
        expected = np.array(list(COLOURS.values()))[part.labels] / 255
        np.testing.assert_allclose(shown, expected, atol=0.03)


def test_values_are_standardised_by_imagenets_constants(tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "one").mkdir(parents=True)
        Image.new("RGB", (20, 20), (10, 128, 255)).save(tmp_path / part / "one" / "0.png")
    expected = (np.array([10, 128, 255]) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    for part in made(tmp_path):
        assert np.array_equal(part.values(), np.broadcast_to(expected.astype(np.float32), (1, *IMAGE)))


def test_without_parts_a_fifth_of_each_class_is_held_out(flat: Path) -> None:
    train, test = names(flat)
    assert sorted(train + test) == sorted(f"{path.parent.name}/{path.name}" for path in flat.glob("*/*"))
    assert [sum(name.startswith(each) for name in test) for each in COUNTS] == [1, 2, 1]
    assert train == sorted(train)
    assert len({tuple(names(flat, seed)[1]) for seed in range(5)}) > 1


def test_what_is_held_out_does_not_depend_on_other_classes(flat: Path) -> None:
    _, before = names(flat)
    (flat / "ape").rename(flat / ".ape")
    _, after = names(flat)
    assert after == [name for name in before if not name.startswith("ape")]


def test_what_is_held_out_does_not_depend_on_where_the_folder_lies(flat: Path) -> None:
    before = names(flat)
    assert names(flat.rename(flat.parent / "moved")) == before


def test_files_beside_the_classes_and_hidden_ones_are_not_looked_at(flat: Path) -> None:
    before = store.sha256(dataset(flat))
    (flat / "LICENSE.txt").write_text("free")
    (flat / "bee" / ".DS_Store").write_bytes(b"\0\0")
    (flat / ".cache").mkdir()
    assert store.sha256(dataset(flat)) == before


def test_another_process_and_other_threads_make_the_same_bytes(flat: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from compare.data import Dataset, folders, store; print(store.sha256("
        f"Dataset(*folders.load(Path(sys.argv[1]), {IMAGE}, classes=10, seed=3, epochs=2, threads=1), '')))"
    )
    command = [sys.executable, "-c", code, str(flat)]
    elsewhere = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert {store.sha256(dataset(flat, seed=3, epochs=2, threads=threads)) for threads in (1, 2, 7)} == {
        elsewhere.stdout.strip()
    }


def test_what_is_drawn_depends_on_seed_epoch_and_index_alone(parted: Path) -> None:
    three, _ = made(parted, epochs=3)
    one, _ = made(parted, epochs=1)
    views = three.images.reshape(3, 19, *IMAGE)
    assert np.array_equal(views[0], one.images)
    assert len({digest(image) for image in three.images}) == 57
    assert not np.array_equal(made(parted, seed=1)[0].images, one.images)
    (parted / "train" / "cat" / "01.JPEG").unlink()  # the last one: no other's index changes
    assert np.array_equal(made(parted, epochs=3)[0].images.reshape(3, 18, *IMAGE), views[:, :18])


def test_the_same_photograph_twice_is_cropped_twice(parted: Path) -> None:
    (parted / "train" / "cat" / "02.png").symlink_to("../bee/02.png")
    first, second = made(parted)[0].values()[[8, 19]]
    assert np.allclose(first.mean(axis=(0, 1)), second.mean(axis=(0, 1)), atol=0.2)
    assert not np.array_equal(first, second)


def test_each_epoch_takes_its_own_crops_and_then_the_first_again(parted: Path) -> None:
    train, _ = made(parted, epochs=2)
    views = train.images.reshape(2, 19, *IMAGE)
    for epoch in range(3):
        known = {digest(image): label for image, label in zip(views[epoch % 2], train.labels, strict=True)}
        for batch in batches.epoch_batches(train, seed=0, epoch=epoch, batch_size=5):
            assert [known[digest(image)] for image in batch.images] == batch.labels.tolist()


class Reader:
    """A session that tells a class by its colour, and remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[Array] = []

    def logits(self, images: Array) -> Array:
        self.shown.append(images)
        return images.mean(axis=(1, 2))


def test_the_training_accuracy_is_that_of_the_first_epochs_crops(parted: Path) -> None:
    train, test = made(parted, epochs=2)
    reader = Reader()
    found = training._accuracy(reader, train, 8)  # pyright: ignore
    assert found == 1.0
    assert np.array_equal(np.concatenate(reader.shown)[:19], train.values()[:19])
    assert not np.concatenate(reader.shown)[19:].any()
    assert training._accuracy(reader, test, 8) == 1.0  # pyright: ignore


def test_every_child_reads_the_pixels_of_the_digest(flat: Path, tmp_path: Path) -> None:
    data = load(RESNET, folder=str(flat), seed=0, batch_size=4, epochs=2)
    assert data.source == (
        f"photographs in {flat} (3 of 1,000 classes; 15 train, 4 test, cropped afresh for each of 2 epochs)"
    )
    assert (data.train.images.shape, data.test.images.shape) == ((30, 224, 224, 3), (4, 224, 224, 3))
    store.save(data, tmp_path / "data.safetensors")
    read = Dataset(*store.load(str(tmp_path / "data.safetensors")), "")
    assert store.sha256(read) == store.sha256(data)
    spec = RunSpec(**{**SPEC, "data": str(tmp_path / "data.safetensors")})
    first, second = (training.epoch(spec, read.train, epoch)[0] for epoch in range(2))
    assert digest(first.images) != digest(second.images)


SPEC = {
    "workload": "resnet50", "precision": "float32", "device": "cpu", "batch_size": 4, "seed": 0, "knobs": {},
    "epochs": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "mobilenet-v2", "convnext-tiny"])
def test_workloads_on_photographs_are_synthetic_without_a_folder(name: str, flat: Path) -> None:
    chosen = workloads.get(name)
    assert "photographs (--data DIR) or synthetic images" in chosen.summary
    chosen = replace(chosen, model=replace(chosen.model, classes=3))  # a thousand templates take a minute
    assert load(chosen, folder=None, seed=0, batch_size=1).source.startswith("synthetic 224x224x3 images, seed 0")
    other = load(chosen, folder=str(flat), seed=0, batch_size=1, image_size=32)
    assert other.source.startswith("synthetic 32x32x3")
    assert f"{flat} not read" in other.source
    assert load(chosen, folder=str(flat), seed=0, batch_size=1).source.startswith("photographs in")


def test_a_batch_larger_than_the_folder_is_refused(flat: Path) -> None:
    with pytest.raises(Refused, match=r"batch size 16 is larger than the training set, .*15 train.*allowed: 1 to 15"):
        load(RESNET, folder=str(flat), seed=0, batch_size=16)


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
    made(flat)
    spoil(flat)
    with pytest.raises(Refused, match=message):
        made(flat)


def test_the_first_bad_file_is_named_whatever_the_threads(flat: Path) -> None:
    for name in ("bee", "ape", "cat"):
        for path in (flat / name).iterdir():
            path.write_bytes(b"no")
    first = names(flat)[0][0]
    for threads in (1, 2, 7):
        with pytest.raises(Refused, match=rf"/{first}: no JPEG"):
            made(flat, threads=threads)


def test_a_part_that_lies_elsewhere_is_refused_and_a_linked_folder_is_not(parted: Path) -> None:
    linked = parted.parent / "linked"
    linked.symlink_to(parted)
    assert len(made(linked)[0].labels) == 19
    (parted / "val").rename(parted.parent / "val")
    (parted / "val").symlink_to("../val")
    with pytest.raises(Refused, match=r"/parted/val: a link out of the folder"):
        made(parted)


def test_links_within_the_folder_are_followed(flat: Path) -> None:
    (flat / "cat" / "02.png").symlink_to("../bee/02.png")
    assert len(dataset(flat).train.labels) == 16


@pytest.mark.parametrize(("part", "other"), [("train", "val"), ("val", "train")])
def test_both_parts_have_the_same_classes(parted: Path, part: str, other: str) -> None:
    (parted / part / "dog").mkdir()
    picture((5, 5, 5), 0).save(parted / part / "dog" / "0.png")
    with pytest.raises(Refused, match=rf"/{other}/dog: no such folder; train and val must have the same classes"):
        made(parted)


@pytest.mark.parametrize("folder", ["nowhere", "file"])
def test_what_is_no_folder_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=rf"--data .*/{folder}: no such folder"):
        load(RESNET, folder=str(tmp_path / folder), seed=0, batch_size=2)


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    picture((1, 2, 3), 0).save(tmp_path / "0.png")
    with pytest.raises(Refused, match=r"no folder of a class in it; expected: DIR/train/CLASS"):
        made(tmp_path)


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
        made(flat)


def test_a_run_has_crops_for_each_epoch_and_seed(flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests: list[str] = []
    real = store.save

    def save(kept: Dataset, path: Path) -> None:
        if kept.source.startswith("photographs"):
            assert len(kept.train.images) == 2 * len(kept.train.labels) == 30
            digests.append(store.sha256(kept))
        real(kept, path)

    monkeypatch.setattr(store, "save", save)
    few = replace(RESNET, model=replace(RESNET.model, image=IMAGE, classes=3))
    result = Stage(tmp_path, monkeypatch).agree(workload=few, data_folder=str(flat), batch_size=4, epochs=2, seeds=3)
    assert len(set(digests)) == len(digests) == 3
    assert result["spec"]["data_sha256"] in digests
    assert {each["name"]: each["reason"] for each in result["contenders"]} == {"fake": None, "other": None}
    assert result["spec"]["data_folder"] == str(flat)
    assert (result["spec"]["train_images"], result["spec"]["test_images"]) == (15, 4)
    assert len(result["contenders"][0]["training"]["loss"]) == 2
