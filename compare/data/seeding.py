"""What the run's seed decides: random streams, and the order in which a training set is seen in each epoch."""

import hashlib
import json
from dataclasses import replace

import numpy as np

from compare.base.interface import Batch, Refused


def make_generator(domain: str, seed: int, *keys: int | str) -> np.random.Generator:
    """Return NumPy's PCG64 generator for one use of the run's seed.

    Different domains (`weights`, `split`, `shuffle`, ...), seeds or keys give different streams. The entropy of the
    `numpy.random.SeedSequence` is the SHA-256 of the list [domain, seed, *keys].
    """
    text = json.dumps(["samestep", domain, seed, *keys])
    entropy = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def draw_epoch_batches(train: Batch, *, seed: int, epoch: int, batch_size: int, most: int | None = None) -> list[Batch]:
    """Return the full batches of one shuffled epoch: images [batch_size, H, W, C], labels [batch_size], contiguous.

    With `most`, return only that many.

    The order depends on the number of labels, `seed` and `epoch` (from 0) only. Each epoch leaves out other images, if
    the last ones fill no batch. If `train` has several views of its images (`compare.data.datasets.Dataset`), each
    epoch takes the next view, and begins again after the last.

    Raises:
        Refused: `batch_size` is below 1 or above the number of training images.
    """
    count = len(train.labels)
    if not 1 <= batch_size <= count:
        raise Refused(f"batch size {batch_size} for {count} training images; allowed: 1 to {count}")
    order = make_generator("shuffle", seed, epoch).permutation(count)
    view = train.images[epoch % (len(train.images) // count) * count :][:count]
    batches: list[Batch] = []
    for start in range(0, count - batch_size + 1, batch_size)[:most]:
        chosen = order[start : start + batch_size]
        images, labels = np.ascontiguousarray(view[chosen]), np.ascontiguousarray(train.labels[chosen])
        batches.append(Batch(images, labels, train.levels))
    return batches


def reorder(batch: Batch, parts: int, random: np.random.Generator) -> Batch:
    """Return a batch in another order within each of its `parts` equal parts.

    A model that treats all images of a part alike trains the same function on it. Only the rounding of sums differs.
    """
    size = len(batch.labels) // parts
    order = np.concatenate([part * size + random.permutation(size) for part in range(parts)])
    return replace(batch, images=batch.images[order], labels=batch.labels[order])
