"""Sources, split, shuffles and digests of `compare.data`."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compare.base import workloads
from compare.base.interface import Array, Batch, Refused
from compare.data import dataset_file, digits, seeding, synthetic
from compare.data.datasets import Dataset, digest, load

DIGITS = workloads.get("digits-cnn")
MNIST = workloads.get("mnist-cnn")
CIFAR = workloads.get("cifar-cnn")
# The bits themselves: a change here changes every published result.
PINNED_DRAWS = [3716099050773139223, 3837852120384681485]
PINNED_DIGITS = (
    "faed2efd94e7a87d04f59b00eaf2784ca234c53f0d75a55fa31e623416250eff",
    "df6117775c983f1ff46908d1545b3d3c3474cd30ddd4821fac5418d4c9f7e432",
)


def numbered(count: int) -> Batch:
    """Return a training set whose image i is filled with i, and so is its label."""
    labels = np.arange(count, dtype=np.int32)
    return Batch(np.broadcast_to(labels.astype(np.float32)[:, None, None, None], (count, 3, 3, 1)).copy(), labels)


def both(batch: Batch) -> str:
    """Return one digest of images and labels."""
    return digest(batch.values(), batch.labels)


def test_digits_have_the_documented_form() -> None:
    dataset = load(DIGITS, folder=None, seed=0, batch_size=64)
    assert dataset.source == "scikit-learn digits (1,437 train, 360 test)"
    for part, count in ((dataset.train, 1437), (dataset.test, 360)):
        assert part.images.shape == (count, 8, 8, 1)
        assert part.labels.shape == (count,)
        assert (part.images.dtype, part.values().dtype) == (np.uint8, np.float32)
        assert part.labels.dtype == np.int32
        assert part.values().min() == (np.float32(0) - np.float32(digits.MEAN)) / np.float32(digits.DEVIATION)
        assert part.values().max() == (np.float32(1) - np.float32(digits.MEAN)) / np.float32(digits.DEVIATION)
        assert set(part.labels.tolist()) == set(range(10))


def test_digits_pair_images_with_their_labels() -> None:
    from sklearn.datasets import load_digits  # pyright: ignore

    pixels, target = load_digits(return_X_y=True)  # pyright: ignore
    known = {np.asarray(image).tobytes(): int(label) for image, label in zip(pixels, target, strict=True)}  # pyright: ignore
    train, test = digits.load(4)
    for part in (train, test):
        raw = np.rint((part.values().reshape(-1, 64) * digits.DEVIATION + digits.MEAN) * 16).astype(np.float64)
        assert [known[image.tobytes()] for image in raw] == part.labels.tolist()


def test_split_is_disjoint_complete_and_fixed_by_the_seed() -> None:
    train, test = digits.split(7)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(1797))
    assert len(train) == digits.TRAIN
    again, _ = digits.split(7)
    other, _ = digits.split(8)
    assert np.array_equal(train, again)
    assert not np.array_equal(train, other)


def test_split_does_not_depend_on_the_batch_size() -> None:
    one = load(DIGITS, folder=None, seed=3, batch_size=1)
    many = load(DIGITS, folder=None, seed=3, batch_size=1437)
    assert both(one.train) == both(many.train)
    assert both(one.test) == both(many.test)


def test_a_batch_larger_than_the_training_set_is_refused() -> None:
    with pytest.raises(Refused, match=r"batch size 1438 .*scikit-learn digits.*allowed: 2 to 1437"):
        load(DIGITS, folder=None, seed=0, batch_size=1438)


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_are_refused(size: int) -> None:
    with pytest.raises(Refused, match=f"batch size {size}: allowed are 1 and more"):
        load(DIGITS, folder=None, seed=0, batch_size=size)
    with pytest.raises(Refused, match=f"image size {size}: allowed are 1 pixel and more"):
        load(DIGITS, folder=None, seed=0, batch_size=1, image_size=size)


def test_a_folder_for_digits_is_refused() -> None:
    with pytest.raises(Refused, match=r"--data /some: workload digits-cnn takes no folder, its digits are embedded"):
        load(DIGITS, folder="/some", seed=0, batch_size=2, image_size=9)


def test_mnist_without_a_folder_is_refused_with_the_expected_files() -> None:
    with pytest.raises(Refused, match=r"--data DIR.*train-images-idx3-ubyte.*t10k-labels-idx1-ubyte.*\.gz"):
        load(MNIST, folder=None, seed=0, batch_size=2)


@pytest.mark.parametrize("workload", [MNIST, CIFAR], ids=lambda workload: workload.name)
def test_a_folder_that_does_not_exist_is_refused(workload: workloads.Workload, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"gone: no such folder"):
        load(workload, folder=str(tmp_path / "gone"), seed=0, batch_size=2)


def test_a_folder_that_may_not_be_searched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    for workload in (MNIST, CIFAR):
        with pytest.raises(Refused, match=r"cannot be read: .*Permission denied"):
            load(workload, folder=str(tmp_path), seed=0, batch_size=2)


def test_unknown_data_are_refused() -> None:
    with pytest.raises(Refused, match=r"unknown data 'imagenet'; allowed: digits, mnist, cifar10"):
        load(replace(DIGITS, data="imagenet"), folder=None, seed=0, batch_size=2)


def test_cifar_without_a_folder_is_synthetic() -> None:
    dataset = load(CIFAR, folder=None, seed=5, batch_size=4)
    assert dataset.train.images.shape == (32, 32, 32, 3)
    assert dataset.test.images.shape == (8, 32, 32, 3)
    assert dataset.source == "synthetic 32x32x3 images, seed 5 (32 train, 8 test)"


@pytest.mark.parametrize("workload", [DIGITS, MNIST, CIFAR], ids=lambda workload: workload.name)
@pytest.mark.parametrize("size", [5, 10])
def test_another_image_size_is_synthetic(workload: workloads.Workload, size: int) -> None:
    dataset = load(workload, folder=None, seed=0, batch_size=2, image_size=size)
    assert dataset.train.images.shape == (16, size, size, workload.model.image[2])
    assert dataset.source.startswith("synthetic")
    assert load(DIGITS, folder=None, seed=0, batch_size=2, image_size=8).source.startswith("scikit-learn")


def test_a_folder_that_is_not_read_is_mentioned() -> None:
    dataset = load(CIFAR, folder="/some", seed=0, batch_size=2, image_size=9)
    assert "/some not read" in dataset.source


def test_synthetic_data_are_deterministic_and_differ_by_seed_and_part() -> None:
    train, test = synthetic.make((8, 8, 3), classes=10, seed=1, train=16, test=16)
    again = synthetic.make((8, 8, 3), classes=10, seed=1, train=16, test=16)
    other, _ = synthetic.make((8, 8, 3), classes=10, seed=2, train=16, test=16)
    assert (both(train), both(test)) == (both(again[0]), both(again[1]))
    assert len({both(train), both(test), both(other)}) == 3
    assert train.images.dtype == np.float32
    assert train.labels.dtype == np.int32


def test_the_runs_seed_reaches_synthetic_images() -> None:
    assert len({both(load(CIFAR, folder=None, seed=seed, batch_size=1).train) for seed in range(3)}) == 3


def test_synthetic_templates_differ_by_seed() -> None:
    means: list[Array] = []
    for seed in (0, 1):
        train, _ = synthetic.make((8, 8, 1), classes=2, seed=seed, train=4000, test=1)
        means.append(train.images[train.labels == 0].mean(axis=0))
    assert np.abs(means[0] - means[1]).max() > 0.2


def test_synthetic_classes_can_be_told_apart() -> None:
    train, test = synthetic.make((16, 16, 3), classes=10, seed=0, train=1000, test=300)
    assert np.bincount(train.labels, minlength=10).min() > 60
    centres = np.stack([train.images[train.labels == label].mean(axis=0) for label in range(10)])
    distances = ((test.images[:, None] - centres) ** 2).sum(axis=(2, 3, 4))
    assert np.mean(distances.argmin(axis=1) == test.labels) > 0.9


def test_synthetic_images_beyond_memory_are_refused() -> None:
    with pytest.raises(Refused, match=r"2000000 synthetic images .*allowed: 699050"):
        load(CIFAR, folder=None, seed=0, batch_size=1_000_000)


def test_an_image_of_which_no_batch_fits_is_refused_with_the_largest_that_does() -> None:
    size = 23_170  # 1,072,851,600 values: two of float32 fit into 8 GiB
    huge = replace(CIFAR, model=replace(CIFAR.model, image=(size, size, 2)))
    with pytest.raises(Refused, match=r"4 synthetic images of .*; allowed: images of up to 536870912 values"):
        load(huge, folder=None, seed=0, batch_size=2)


@pytest.mark.parametrize(("fit", "train", "test"), [(11, 8, 2), (10, 8, 2), (9, 8, 1), (6, 5, 1), (2, 1, 1)])
def test_large_batches_of_synthetic_images_are_fewer(
    monkeypatch: pytest.MonkeyPatch, fit: int, train: int, test: int
) -> None:
    size = 32
    monkeypatch.setattr(synthetic, "MOST_BYTES", fit * size * 4 * 32 * 32 * 3)
    dataset = load(CIFAR, folder=None, seed=0, batch_size=size)
    assert (len(dataset.train.labels), len(dataset.test.labels)) == (train * size, test * size)
    with pytest.raises(Refused, match="synthetic images of"):
        load(CIFAR, folder=None, seed=0, batch_size=fit * size)


def test_an_epoch_has_distinct_full_contiguous_batches_in_pairs() -> None:
    epoch = seeding.draw_epoch_batches(numbered(23), seed=0, epoch=0, batch_size=5)
    assert [len(batch.labels) for batch in epoch] == [5] * 4
    labels = np.concatenate([batch.labels for batch in epoch])
    assert len(set(labels.tolist())) == 20
    for batch in epoch:
        assert np.array_equal(batch.images[:, 0, 0, 0], batch.labels)
        assert batch.images.flags.c_contiguous
        assert batch.labels.flags.c_contiguous
        assert (batch.images.dtype, batch.labels.dtype) == (np.float32, np.int32)


def test_batches_that_divide_the_set_cover_it() -> None:
    epoch = seeding.draw_epoch_batches(numbered(24), seed=0, epoch=0, batch_size=6)
    assert sorted(np.concatenate([batch.labels for batch in epoch]).tolist()) == list(range(24))


def order(seed: int, epoch: int) -> list[int]:
    """Return the labels of one epoch in their order."""
    chosen = seeding.draw_epoch_batches(numbered(23), seed=seed, epoch=epoch, batch_size=5)
    return np.concatenate([batch.labels for batch in chosen]).tolist()


def test_shuffles_differ_between_epochs_and_seeds_and_repeat() -> None:
    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_the_left_out_images_differ_between_epochs() -> None:
    assert len({frozenset(order(0, epoch)) for epoch in range(5)}) == 5


@pytest.mark.parametrize("size", [0, 24])
def test_batch_sizes_that_fill_no_batch_are_refused(size: int) -> None:
    with pytest.raises(Refused, match=rf"batch size {size} for 23 training images; allowed: 1 to 23"):
        seeding.draw_epoch_batches(numbered(23), seed=0, epoch=0, batch_size=size)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_another_order_keeps_images_with_their_labels_and_within_their_part(parts: int) -> None:
    levels = np.arange(768, dtype=np.float32).reshape(256, 3)
    images = np.arange(16 * 2 * 2 * 3, dtype=np.uint8).reshape(16, 2, 2, 3)
    batch = Batch(images, images[..., 0].astype(np.int32), levels)  # a label for every pixel
    found = seeding.reorder(batch, parts, np.random.default_rng(0))
    np.testing.assert_array_equal(found.labels, found.images[..., 0])
    assert found.levels is levels
    order = found.images[:, 0, 0, 0].tolist()
    before = images[:, 0, 0, 0].tolist()
    size = 16 // parts
    for start in range(0, 16, size):
        part = slice(start, start + size)
        assert order[part] != before[part]
        assert sorted(order[part]) == sorted(before[part])


def test_every_twin_has_an_order_of_its_own_and_so_has_every_part() -> None:
    batch = Batch(np.arange(32, dtype=np.float32), np.arange(32, dtype=np.int32))
    one, other = (seeding.reorder(batch, 2, np.random.default_rng(seed)).labels for seed in (0, 1))
    assert one.tolist() != other.tolist()
    assert one[:16].tolist() != (one[16:] - 16).tolist()


def test_random_streams_never_coincide() -> None:
    streams = [("split", 1), ("shuffle", 1), ("shuffle", 1, 0), ("shuffle", 1, 1), ("shuffle", 11), ("shuffle", 2**64)]
    streams += [("weights", 1, "a.kernel"), ("weights", 1, "a", "kernel"), ("weights", 1, "1"), ("weights", -1)]
    draws = {seeding.make_generator(str(domain), int(seed), *keys).integers(2**62) for domain, seed, *keys in streams}
    assert len(draws) == len(streams)


def test_random_streams_are_pinned() -> None:
    assert seeding.make_generator("shuffle", 0, 0).integers(2**62, size=2).tolist() == PINNED_DRAWS


def test_a_digest_depends_on_values_dtype_shape_and_order() -> None:
    base = np.arange(6, dtype=np.int32)
    changed = base.copy()
    changed[5] = 0
    variants: list[list[Array]] = [[base], [changed], [base.view(np.float32)], [base.reshape(2, 3)], [base, base]]
    variants += [[base[:2], base[2:]], [base[:4], base[4:]], [base, changed], [changed, base], [base[:0]], []]
    assert len({digest(*arrays) for arrays in variants}) == len(variants)


def test_a_digest_ignores_the_memory_layout() -> None:
    square = np.arange(6.0).reshape(2, 3)
    assert digest(np.asfortranarray(square)) == digest(square)
    assert digest(np.array(3.0)) != digest(np.array([3.0]))


def test_importing_the_package_stays_light() -> None:
    heavy = "{'sklearn', 'scipy', 'torch', 'jax'}"
    code = f"import compare.data.weights, sys; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_digits_bits_are_pinned() -> None:
    train, test = digits.load(0)
    assert (both(train), both(test)) == PINNED_DIGITS


def test_a_stored_dataset_is_mapped_and_what_is_written_to_it_stays_here(tmp_path: Path) -> None:
    images, levels = np.arange(48, dtype=np.uint8).reshape(4, 2, 2, 3), np.zeros((256, 3), np.float32)
    part = Batch(images, np.arange(4, dtype=np.int32), levels)
    dataset_file.save(Dataset(part, part, ""), tmp_path / "data")
    for _ in range(2):
        for loaded in dataset_file.load(str(tmp_path / "data")):
            for name, array in vars(part).items():
                mapped = getattr(loaded, name)
                assert np.array_equal(mapped, array)
                assert not mapped.flags.owndata
                mapped += 1


def test_synthetic_images_are_made_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = synthetic.make
    monkeypatch.setattr(synthetic, "make", lambda *a, **k: made.append(k["train"]) or make(*a, **k))
    dataset = load(workloads.get("cifar-cnn"), folder=None, seed=0, batch_size=4)
    assert "synthetic 32x32x3 images" in dataset.source
    assert not made
    assert len(dataset.train.labels) == 32
    assert len(dataset.test.labels) == 8
    assert made == [32]


def test_large_data_that_are_made_while_they_are_stored_have_the_digest_of_what_is_stored(tmp_path: Path) -> None:
    data = load(CIFAR, folder=None, seed=0, batch_size=256)
    dataset_file.save(data, tmp_path / "data.safetensors", digests=True)
    assert data.sha256 == Dataset(*dataset_file.load(str(tmp_path / "data.safetensors")), "").sha256
