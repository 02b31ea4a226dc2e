"""Photographs in folders: which files are read, and which crops are taken of them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compare.base import workloads
from compare.base.interface import Array, RunSpec
from compare.data import dataset_file, folders, seeding
from compare.data.datasets import Dataset, digest, load
from compare.worker import training
from tests.unit.photo_folders import COLOURS, COUNTS, IMAGE, RESNET, dataset, fill, load_batches, names
from tests.unit.photo_folders import flat as flat
from tests.unit.photo_folders import parted as parted
from tests.unit.stage import Stage


def test_imagenets_layout_is_read_class_by_class(parted: Path) -> None:
    train, test = load_batches(parted)
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
    for part in load_batches(tmp_path):
        assert np.array_equal(part.values(), np.broadcast_to(expected.astype(np.float32), (1, *IMAGE)))


def test_of_a_large_folder_so_many_images_are_drawn_by_the_seed(parted: Path) -> None:
    whole, _ = load_batches(parted)
    colours = np.array(list(COLOURS.values()))
    drawn = [load_batches(parted, seed=seed, images=10) for seed in range(5)]
    for train, test in drawn:
        assert (len(train.images), len(test.images)) == (10, 2)  # of 19 and 4
        assert train.labels.tolist() == sorted(train.labels.tolist())
        for part in (train, test):
            shown = part.values().mean(axis=(1, 2)) * folders.STD + folders.MEAN
            np.testing.assert_allclose(shown, colours[part.labels] / 255, atol=0.03)
    assert len({tuple(train.labels) for train, _ in drawn}) > 1
    again, _ = load_batches(parted, seed=4, images=10)
    assert np.array_equal(again.images, drawn[4][0].images)
    assert np.array_equal(load_batches(parted, images=19)[0].images, whole.images)
    assert len(load_batches(parted, images=1)[1].labels) == 1


def test_without_parts_a_fifth_of_each_class_is_held_out(flat: Path) -> None:
    train, test = names(flat)
    assert sorted(train + test) == sorted(f"{path.parent.name}/{path.name}" for path in flat.glob("*/*"))
    assert [sum(name.startswith(each) for name in test) for each in COUNTS] == [1, 2, 1]
    assert train == sorted(train)
    assert len({tuple(names(flat, seed)[1]) for seed in range(5)}) > 1


def test_the_fifth_that_is_held_out_is_rounded_down(tmp_path: Path) -> None:
    fill(tmp_path, {"ape": 8, "bee": 9, "cat": 10})
    _, test = names(tmp_path)
    assert [sum(name.startswith(each) for name in test) for each in COUNTS] == [1, 1, 2]


def test_what_is_held_out_does_not_depend_on_other_classes(flat: Path) -> None:
    _, before = names(flat)
    (flat / "ape").rename(flat / ".ape")
    _, after = names(flat)
    assert after == [name for name in before if not name.startswith("ape")]


def test_what_is_held_out_does_not_depend_on_where_the_folder_lies(flat: Path) -> None:
    before = names(flat)
    assert names(flat.rename(flat.parent / "moved")) == before


def test_links_within_the_folder_are_followed(flat: Path) -> None:
    (flat / "cat" / "02.png").symlink_to("../bee/02.png")
    assert len(dataset(flat).train.labels) == 16


def test_files_beside_the_classes_and_hidden_ones_are_not_looked_at(flat: Path) -> None:
    before = dataset(flat).sha256
    (flat / "LICENSE.txt").write_text("free")
    (flat / "bee" / ".DS_Store").write_bytes(b"\0\0")
    (flat / ".cache").mkdir()
    assert dataset(flat).sha256 == before


def test_another_process_and_other_threads_make_the_same_bytes(flat: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from compare.data import folders; "
        "from compare.data.datasets import Dataset; "
        f"print(Dataset(*folders.load(Path(sys.argv[1]), {IMAGE}, classes=10, seed=3, epochs=2, threads=1), '').sha256)"
    )
    command = [sys.executable, "-c", code, str(flat)]
    elsewhere = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert {dataset(flat, seed=3, epochs=2, threads=threads).sha256 for threads in (1, 2, 7)} == {
        elsewhere.stdout.strip()
    }


def test_what_is_drawn_depends_on_seed_epoch_and_index_alone(parted: Path) -> None:
    three, _ = load_batches(parted, epochs=3)
    one, _ = load_batches(parted, epochs=1)
    views = three.images.reshape(3, 19, *IMAGE)
    assert np.array_equal(views[0], one.images)
    assert len({digest(image) for image in three.images}) == 57
    assert not np.array_equal(load_batches(parted, seed=1)[0].images, one.images)
    (parted / "train" / "cat" / "01.JPEG").unlink()  # the last one: no other's index changes
    assert np.array_equal(load_batches(parted, epochs=3)[0].images.reshape(3, 18, *IMAGE), views[:, :18])


def test_the_same_photograph_twice_is_cropped_twice(parted: Path) -> None:
    (parted / "train" / "cat" / "02.png").symlink_to("../bee/02.png")
    first, second = load_batches(parted)[0].values()[[8, 19]]
    assert np.allclose(first.mean(axis=(0, 1)), second.mean(axis=(0, 1)), atol=0.2)
    assert not np.array_equal(first, second)


def test_each_epoch_takes_its_own_crops_and_then_the_first_again(parted: Path) -> None:
    train, _ = load_batches(parted, epochs=2)
    views = train.images.reshape(2, 19, *IMAGE)
    for epoch in range(3):
        known = {digest(image): label for image, label in zip(views[epoch % 2], train.labels, strict=True)}
        for batch in seeding.draw_epoch_batches(train, seed=0, epoch=epoch, batch_size=5):
            assert [known[digest(image)] for image in batch.images] == batch.labels.tolist()


class Reader:
    """A session that tells a class by its colour, and remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[Array] = []

    def logits(self, images: Array) -> Array:
        self.shown.append(images)
        return images.mean(axis=(1, 2))


def test_the_training_accuracy_is_that_of_the_first_epochs_crops(parted: Path) -> None:
    train, test = load_batches(parted, epochs=2)
    reader, spec = Reader(), RunSpec(**{**SPEC, "batch_size": 8, "data": ""})
    found = training._measure_accuracy(reader, train, spec)  # pyright: ignore
    assert found == 1.0
    assert np.array_equal(np.concatenate(reader.shown)[:19], train.values()[:19])
    assert not np.concatenate(reader.shown)[19:].any()
    assert training._measure_accuracy(reader, test, spec) == 1.0  # pyright: ignore


def test_every_child_reads_the_pixels_of_the_digest(flat: Path, tmp_path: Path) -> None:
    data = load(RESNET, folder=str(flat), seed=0, batch_size=4, epochs=2)
    assert data.source == (
        f"photographs in {flat} (3 of 1,000 classes; 15 train, 4 test, cropped afresh for each of 2 epochs)"
    )
    assert (data.train.images.shape, data.test.images.shape) == ((30, 224, 224, 3), (4, 224, 224, 3))
    dataset_file.save(data, tmp_path / "data.safetensors")
    read = Dataset(*dataset_file.load(str(tmp_path / "data.safetensors")), "")
    assert read.sha256 == data.sha256
    spec = RunSpec(**{**SPEC, "data": str(tmp_path / "data.safetensors")})
    first, second = (training.draw_batches_of_epoch(spec, read.train, epoch)[0] for epoch in range(2))
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


def test_a_run_has_crops_for_each_epoch_and_seed(flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests: list[str] = []
    real = dataset_file.save

    def save(kept: Dataset, path: Path, **named: bool) -> None:
        if kept.source.startswith("photographs"):
            assert len(kept.train.images) == 2 * len(kept.train.labels) == 30
            digests.append(kept.sha256)
        real(kept, path, **named)

    monkeypatch.setattr(dataset_file, "save", save)
    few = replace(RESNET, model=replace(RESNET.model, image=IMAGE, classes=3))
    asked = {"workload": few, "data": str(flat), "batch_size": 4, "epochs": 2}
    result = Stage(tmp_path, monkeypatch).agree(**asked, seeds=3)
    assert len(set(digests)) == len(digests) == 3
    assert result["spec"]["data_sha256"] in digests
    assert {each["name"]: each["reason"] for each in result["contenders"]} == {"fake": None, "other": None}
    assert result["spec"]["data_folder"] == str(flat)
    assert (result["spec"]["train_images"], result["spec"]["test_images"]) == (15, 4)
    assert len(result["contenders"][0]["training"]["loss"]) == 2
    assert result["spec"]["images"] is None


def test_a_run_draws_its_images_anew_for_each_seed_and_says_so(
    flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[str] = []
    real = dataset_file.save

    def save(kept: Dataset, path: Path, **named: bool) -> None:
        if kept.source.startswith("photographs"):
            assert (len(kept.train.labels), len(kept.test.labels)) == (6, 2)
            assert kept.source.endswith("6 train, 2 test, drawn by the seed)")
            digests.append(digest(kept.train.labels, np.sort(kept.train.images.mean((1, 2, 3)))))
        real(kept, path, **named)

    monkeypatch.setattr(dataset_file, "save", save)
    few = replace(RESNET, model=replace(RESNET.model, image=IMAGE, classes=3))
    result = Stage(tmp_path, monkeypatch).agree(workload=few, data=str(flat), batch_size=4, epochs=1, seeds=3, images=6)
    assert len(set(digests)) == len(digests) == 3
    assert (result["spec"]["images"], result["spec"]["train_images"], result["spec"]["test_images"]) == (6, 6, 2)
